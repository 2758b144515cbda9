import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise.candidate import Reduction, split_command
from loadchaos.campaigns.minimise.session import MinimiseSession
from loadchaos.campaigns.minimise.trials import Trials
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.core.errors import TargetError
from loadchaos.profile.request_trace import RequestTrace, TraceSend
from loadchaos.run.options import Options
from loadchaos.run.ports import free_port
from loadchaos.server.process.launcher import CommandLine
from tests.campaigns.traces import stored_chat, trace_of
from tests.invoking import output_of

DEATH = ExpectedFailure("index_oob_indexkernel", severity="engine_death")
LISTENS = """
import http.server, sys
class Unhealthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(503)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Unhealthy).serve_forever()
"""


def unhealthy_server() -> ServerChoice:
    port = free_port()
    argv = (sys.executable, "-c", LISTENS, "--port", str(port), "--needless")
    return ServerChoice(CommandLine(argv, {}, f"http://127.0.0.1:{port}"), ready_within_s=0.8)


def one_request(folder: Path) -> RequestTrace:
    return trace_of(folder, [TraceSend(id="r0", body=stored_chat(folder))])


def launched(server: ServerChoice) -> list[int]:
    assert server.launch is not None
    port = server.launch.argv[4]
    return [
        p.pid
        for p in psutil.process_iter(["cmdline"])
        if p.info["cmdline"] and p.info["cmdline"][1:2] == ["-c"] and port in p.info["cmdline"]
    ]


def test_minimiser_of_a_server_that_never_gets_healthy_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    server = unhealthy_server()
    plan = TryPlan(server, DEATH, Options(), {})
    session = MinimiseSession(Campaign(tmp_path / "state", lambda _: None), one_request(tmp_path), plan, 60.0)
    with pytest.raises(
        TargetError,
        match=r"not healthy within 800 ms: /health answered 503 'Error response .*';.*log of the server: .*\.log",
    ):
        asyncio.run(session.run())
    assert launched(server) == []
    assert not (tmp_path / "state" / "repro").exists()


def test_candidate_whose_server_never_gets_healthy_cannot_be_tried(tmp_path: Path) -> None:
    server = unhealthy_server()
    assert server.launch is not None
    said: list[str] = []
    trials = Trials(TryPlan(server, DEATH, Options(), {}), Campaign(tmp_path, said.append), "vllm")
    candidate = Reduction(one_request(tmp_path), *split_command(server.launch.argv))
    assert asyncio.run(trials.attempt(candidate)) is None
    assert trials.why.startswith("the server does not start: ")
    assert [line.startswith("a server without these flags does not start") for line in said] == [True]
    assert launched(server) == []


def test_replay_of_a_server_that_never_gets_healthy_ends_with_code_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server, found = unhealthy_server(), one_request(tmp_path)
    assert server.launch is not None
    events = [found.header.model_dump_json(), found.sends[0].model_dump_json()]
    (tmp_path / "trace.jsonl").write_text("\n".join(events) + "\n")
    argv = [sys.executable, str(tmp_path / "server.py"), "--port", server.launch.argv[4]]
    (tmp_path / "server.py").write_text(LISTENS)
    options = ["--any-death", "--times", "2", "--wait-ready", "1s", "--out", "tries"]
    printed = output_of("replay", "trace.jsonl", "--launch", " ".join(argv), *options, code=4)
    assert "was not healthy within 1 s" in printed
    assert "try 2" not in printed  # the next one would fail in the same way
