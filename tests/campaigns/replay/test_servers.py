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
