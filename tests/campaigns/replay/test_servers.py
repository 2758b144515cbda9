from pathlib import Path

import pytest

from loadchaos.campaigns.replay.servers import of_source
from loadchaos.core.errors import OptionError
from loadchaos.profile.request_trace import RequestTrace, TraceHeader


@pytest.mark.parametrize("takes_target", [True, False])
def test_server_of_an_external_run_names_the_options_of_the_command(takes_target: bool) -> None:
    trace = RequestTrace(
        TraceHeader(event="trace", version=1, source="runs/x", server={"kind": "external", "url": "u"}), ()
    )
    with pytest.raises(OptionError) as e:
        of_source(trace, takes_target=takes_target)
    assert "give the command with --launch" in str(e.value)
    assert ("--target" in str(e.value)) is takes_target


def test_embedded_server_without_options_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text("name: p\ntarget: {embedded: {}}\n")
    header = TraceHeader(event="trace", version=1, source="runs/x", server={"kind": "embedded"})
    launch = of_source(RequestTrace(header, (), folder=tmp_path)).launch
    assert launch is not None
    assert "loadchaos.simulator.server" in launch.argv
