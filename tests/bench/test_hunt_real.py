"""First failures of real servers: what the relay reads in answers, and which failure of a run or a hunt is the first."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import hunt_real
from bench.hunt_real import RealResult, RealSettings, RelayState, measure_tool
from bench.hunt_tools import TOOLS, ToolRun
from bench.record import free_port

SERVER = """
import http.server, os, sys, time

class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self):
        self.answer(200, b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Answers.asked += 1
        last = Answers.asked >= 3
        if last and FAULT == "dies":
            os._exit(1)
        if last and FAULT == "hangs":
            time.sleep(60)
        self.answer(500 if last and FAULT == "500" else 200, b"{}")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Answers).serve_forever()
"""
TOOL = """
import sys, urllib.request as r
for _ in range(5):
    r.urlopen(r.Request(sys.argv[1], b"{}")).read()
"""
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n{}"
EVENT = b'data: {"error": {"message": "EngineDeadError", "type": "InternalServerError", "code": %d}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Here:
    def python(self, _: str) -> Path:
        return Path(sys.executable)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"], ""),
        ([HEAD, b"data: x\n\n", b"0\r\n\r\n"], ""),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], ""),
        ([HEAD, EVENT % 400, b"0\r\n\r\n"], ""),
        ([b"HTTP/1.1 503 Service Unavailable\r\n\r\n"], "status 503"),
        ([HEAD, EVENT % 500, b"0\r\n\r\n"], "error event 500"),
    ],
)
def test_relay_reads_status_error_events_and_ends(answer: list[bytes], failure: str) -> None:
    state = RelayState()
    state.sent(1, b"GET /health HTTP/1.1\r\n\r\n")
    state.sent(1, POST)
    assert (state.requests, state.in_flight) == (1, {1})
    for data in answer:
        state.answered(1, data)
    assert (state.failure, state.after_requests, state.in_flight) == (failure, 1 if failure else 0, set())


@pytest.mark.parametrize(
    ("fault", "failure", "requests"),
    [("", "", 5), ("500", "status 500", 3), ("hangs", "hang", 3), ("dies", "engine died", 3)],
)
def test_tool_is_measured_until_the_first_failure(
    fault: str, failure: str, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER.replace("FAULT", repr(fault)))

    def command(run: ToolRun) -> list[str]:
        return [sys.executable, "-c", TOOL, f"{run.url}/v1/chat/completions"]

    monkeypatch.setitem(TOOLS, "asks", ("python", command))
    monkeypatch.setattr(hunt_real, "_HANG_S", 1.5)
    monkeypatch.setattr(hunt_real, "_SETTLE_S", 0.0)
    launch = f"{sys.executable} {script} --port {free_port()}"
    settings = RealSettings(launch, 5, 30.0, tmp_path, _Here())  # type: ignore[arg-type]  # finds this Python
    result = measure_tool("asks", 0, settings, tmp_path)
    assert result.failure.partition(":")[0] == failure
    assert result.requests == requests


def test_first_finding_of_a_hunt_counts_the_workloads_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "hunt-1"
    folder.mkdir()
    rows = [
        {"row": "header", "schema": 1},
        {"requests": 10, "questions": 60, "at_s": 5.0, "failures": [{"id": "refusal", "refused": True}]},
        {"requests": 8, "questions": 1, "at_s": 9.0, "failures": [{"id": "death", "after_requests": 3}]},
        {"requests": 8, "questions": 70, "at_s": 12.0, "failures": [{"id": "other", "after_requests": 1}]},
    ]
    rows[1]["asked"] = {"before": 59, "last": 1, "discovery": 2}
    rows[2]["asked"] = {"last": 1, "discovery": 1}
    (folder / "workloads.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "hunt.json").write_text(json.dumps({"schema": 1, "identified_with": {"reads": 20, "generations": 3}}))
    log = folder / "servers" / "1" / "001" / "server.log"
    log.parent.mkdir(parents=True)
    lines = [
        'INFO: 127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        '"POST /v1/completions/render HTTP/1.1" 200',
    ]
    log.write_text("\n".join(lines))
    assert hunt_real._hunted(tmp_path) == (13, 9.0, "death")
    assert hunt_real._asked(tmp_path) == (61, 6)
    assert hunt_real._posted(tmp_path) == 1


def test_questions_of_a_run_are_counted(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    rows = [{"row": "question"}, {"row": "begin"}, {"row": "question"}, {"row": "discovery", "generations": 3}]
    (tmp_path / "run-1" / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert hunt_real._asked(tmp_path) == (2, 3)


def test_result_without_a_failure_is_censored() -> None:
    assert RealResult("smoke", 0, 200, 61.2, "", 1.0).describe() == "> 200 (61 s)"
    assert RealResult("smoke", 0, 7, 3.9, "hang", 1.0).describe() == "7 (4 s)"
    assert RealResult("hunt", 0, 8, 19.2, "death", 1.0, 66).describe() == "8 + 66 (19 s)"


def test_genes_are_given_to_hunts_alone(tmp_path: Path) -> None:
    settings = RealSettings("serve", 5, 30.0, tmp_path, _Here(), genes=Path("g.yaml"))  # type: ignore[arg-type]  # unused
    hunt = hunt_real.command_of_ours("hunt", 3, settings, tmp_path)
    assert hunt[hunt.index("--genes") + 1] == "g.yaml"
    assert hunt[hunt.index("--seed") + 1] == "3"
    assert "--genes" not in hunt_real.command_of_ours("smoke", 3, settings, tmp_path)
    without = hunt_real.command_of_ours("hunt", 3, replace(settings, genes=None), tmp_path)
    assert "--genes" not in without


HUNT = """
import json, sys, time
from pathlib import Path
folder = Path(sys.argv[1], "hunt-1")
folder.mkdir()
rows = [{"row": "header", "schema": 1}, {"requests": 10, "questions": 0, "at_s": 30.0, "failures": []}]
(folder / "workloads.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
time.sleep(60)
"""


def test_seconds_of_a_hunt_that_found_nothing_count_its_first_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", HUNT, str(tmp_path)]
    monkeypatch.setattr(hunt_real, "command_of_ours", lambda *_: command)
    settings = RealSettings("serve", 10, 300.0, tmp_path, _Here())  # type: ignore[arg-type]  # unused
    result = hunt_real.measure_ours("hunt", 0, settings, tmp_path)
    assert (result.requests, result.failure) == (10, "")
    assert 30.0 <= result.seconds < 50.0
