from pathlib import Path

import orjson
import pytest

from loadchaos.campaigns.minimise import repro
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.minimiser import Minimised
from loadchaos.campaigns.minimise.validate import ScriptRuns
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.servers import ServerChoice, of_source
from loadchaos.campaigns.replay.sources import read_source
from loadchaos.cli.replay import expected_failure
from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import RequestTrace, TraceHeader, TraceSend
from loadchaos.run.options import Options
from loadchaos.server.process.launcher import CommandLine


def test_readme_of_a_reproducer_says_what_its_server_is_although_a_script_starts_it() -> None:
    flags = "{'model': '/models/tiny', 'load_format': 'dummy'}"
    header = TraceHeader(
        event="trace", version=1, model="tiny", server={"flags": flags, "system": {"torch": "2.13.0+cpu"}}
    )
    whole = Reduction(RequestTrace(header, ()), ("./start.sh",), ())
    server = ServerChoice(CommandLine(("./start.sh",), {}, "http://127.0.0.1:8000"))
    failure = ExpectedFailure("mm_encoder_gave_nothing", "", "engine_death", "the engine died")
    found = repro.Reproducer(whole, TryPlan(server, failure, Options(), {}), "0.32.0", "vllm")
    output = "".join(f"{n} HTTPError('reset')\n" for n in range(64)) + "the server died in round 1\n"
    text = repro.readme(found, ScriptRuns(9, 10, 2, output), found.candidate)
    assert "- Model: /models/tiny (served as tiny), load format dummy\n- Versions: torch 2.13.0+cpu\n" in text
    assert "- Machine: " in text
    assert "docs/repros/vllm-0.32.0-preempted-image of loadchaos" in text
    assert (
        "9 of 10 runs of repro.py on a fresh server, 2 of them in the search (p = 0.90, 95 % CI 0.60 to 0.98)" in text
    )
    assert "    0, 1, 2 and 61 more HTTPError('reset')\n    the server died in round 1\n" in text


@pytest.mark.parametrize(
    ("failure_id", "dialect", "tools", "named"),
    [
        ("schema_violated", "vllm", True, True),
        ("schema_violated", "vllm", False, False),
        ("schema_violated", "sglang", True, False),
        ("spec_sampler_top_k", "vllm", False, True),
    ],
)
def test_readme_names_our_reproducer_of_the_same_server_and_requests(
    tmp_path: Path, failure_id: str, dialect: str, tools: bool, named: bool
) -> None:
    asked = {"model": "sim", "messages": [{"role": "user", "content": "a"}], **({"tools": []} if tools else {})}
    sends = (TraceSend(id="r0", body=store_body(tmp_path / "bodies", orjson.dumps(asked))),)
    header = TraceHeader(event="trace", version=1, source="run", server={"kind": "embedded"})
    whole = Reduction(RequestTrace(header, sends, folder=tmp_path), ("serve",), ())
    server = ServerChoice(CommandLine(("serve",), {}, "http://127.0.0.1:8000"))
    failure = ExpectedFailure(failure_id, "", "request", "wrong")
    found = repro.Reproducer(whole, TryPlan(server, failure, Options(), {}), "0.32.0", dialect)
    assert ("The same failure: docs/repros" in repro.readme(found, ScriptRuns(9, 10), found.candidate)) == named


def test_repro_names_its_failure_and_its_server(tmp_path: Path) -> None:
    body = store_body(
        tmp_path / "bodies", orjson.dumps({"model": "sim", "messages": [{"role": "user", "content": "a"}]})
    )
    header = TraceHeader(event="trace", version=1, source="run", server={"kind": "embedded"})
    whole = Reduction(
        RequestTrace(header, (TraceSend(id="r0", body=body),), folder=tmp_path), ("serve",), (("--a", "1"),)
    )
    server = ServerChoice(CommandLine(("serve", "--a", "1"), {"X": "1"}, "http://127.0.0.1:8000"))
    failure = ExpectedFailure(
        "engine_dead", "f.py step", "engine_death", "the engine died", remedy="Use --enforce-eager."
    )
    found = repro.Reproducer(whole, TryPlan(server, failure, Options(), {}), "0.18", "vllm")
    repro.write_script(found, tmp_path / "repro")
    repro.finish(found, tmp_path / "repro", ScriptRuns(3, 3), Minimised(whole, 1.0), whole)
    again = read_source(tmp_path / "repro", tmp_path / "scratch")
    assert again.header.failure is not None
    options = {"failure": None, "any_death": False}
    assert expected_failure(tmp_path / "repro", again, options) == failure
    launch = of_source(again).launch
    assert launch is not None
    assert (launch.argv, launch.env) == (("serve", "--a", "1"), {"X": "1"})
