"""`loadchaos watch`: the verdict about a server beside the load of others."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.replay.sources import read_source
from loadchaos.report.performance import reported_rows
from tests.embedded_server import EmbeddedServer
from tests.invoking import output_of
from tests.waiting import until
from tests.warm_command import ForkedCommand, outside_ci, run_command

CLIENT = """
import json, os, sys, time, urllib.request
url, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    body = {"model": "sim", "messages": [{"role": "user", "content": f"tell a story {n}"}], "max_tokens": 20,
            "stream": True, "stream_options": {"include_usage": True}}
    head = {"Content-Type": "application/json"}
    try:
        urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), head)).read()
    except OSError as e:
        print("ignored:", e)
        time.sleep(0.2)
    print("answer", n, flush=True)
print("done", end="")
"""
FAULTS = """
name: faults
traffic: [{name: t, payload: {text: {tokens: 8}}}]
load: [{users: 1, for: 1s}]
attacks: [{network: latency, at: 0s, for: 60s, params: {latency: 300}}]
"""
OPTIONS = ("--no-live", "--exporter-port", "0")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """Requests of somebody else, until the block ends."""
    ended = threading.Event()

    def send() -> None:
        body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}).encode()
        while not ended.wait(0.05):
            request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
            try:
                urllib.request.urlopen(request, timeout=20).read()
            except OSError:
                ended.wait(0.2)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def verdict_of(folder: Path) -> tuple[Verdict, Path]:
    (home,) = (folder / "runs").iterdir()
    return Verdict.from_json(json.loads((home / "verdict.json").read_bytes())), home


def check(verdict: Verdict, name: str) -> tuple[str, str]:
    found = next(c for c in verdict.checks if c.name == name)
    return found.verdict, found.actual


def test_watch_passes_a_server_at_work(server: EmbeddedServer, tmp_path: Path) -> None:
    with traffic(server.url):
        argv = ("watch", "--target", server.url, "--server-log", str(server.log), "--for", "3s", *OPTIONS)
        done = run_command(*argv, cwd=tmp_path)
    verdict, home = verdict_of(tmp_path)
    assert (done.returncode, verdict.verdict) == (0, "pass"), done.stdout + done.stderr
    assert "no death, no hang, no failure seen" in done.stdout
    assert check(verdict, "traffic")[0] == "pass" and verdict.sent == 0
    assert not (home / "plan.json").exists()
    assert {e.name for e in verdict.expectations} == {"engine_deaths", "hangs", "outages", "failures"}


def test_watch_of_an_idle_server_proves_nothing(server: EmbeddedServer, tmp_path: Path) -> None:
    done = run_command("watch", "--target", server.url, "--for", "1s", *OPTIONS, cwd=tmp_path)
    verdict, _ = verdict_of(tmp_path)
    assert done.returncode == 3
    assert check(verdict, "traffic") == ("unknown", "no request reached the server in this time")
    assert "failures" not in {e.name for e in verdict.expectations}  # no log was read


def test_watch_tells_a_death_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with EmbeddedServer() as server:
        argv = ("watch", "--target", server.url, "--server-log", str(server.log), *OPTIONS)
        out.touch()
        watching = ForkedCommand(*argv, cwd=tmp_path, env=outside_ci(), output=(str(out), str(out)))
        until(lambda: "healthy" in out.read_text(), "the watch")
        with traffic(server.url):
            time.sleep(1)
            server.process.kill()
            until(lambda: "incident 1" in out.read_text(), "the incident")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 1, out.read_text()
    verdict, home = verdict_of(tmp_path)
    assert verdict.verdict == "fail" and [f.severity for f in verdict.failures] == ["engine_death"]
    assert check(verdict, "run") == ("pass", "completed")
    assert list((home / "incidents").iterdir())


def test_watch_judges_the_requests_of_a_command(server: EmbeddedServer, tmp_path: Path) -> None:
    command = (sys.executable, "-c", CLIENT, "{url}/v1", "6")
    done = run_command("watch", "--target", server.url, *OPTIONS, "--", *command, cwd=tmp_path)
    verdict, home = verdict_of(tmp_path)
    assert (done.returncode, verdict.outcomes) == (0, {"ok": 6}), done.stdout + done.stderr
    assert "answer 5" in done.stdout and "answer 5" in (home / "command.log").read_text()
    assert "done\nPASS" in done.stdout
    assert check(verdict, "command") == ("pass", "exit code 0")
    assert verdict.latency_all is not None and verdict.latency_all.ttft_s.n == 6
    assert list((home / "recording" / "ring").iterdir())


def test_watch_fails_where_the_command_ignores_what_broke(tmp_path: Path) -> None:
    """A client that counts errors as answers: its exit code is 0, the verdict is not."""
    with EmbeddedServer() as server:
        kill = f"import os; os.kill({server.process.pid}, 9)\n"
        script = CLIENT.replace("for n in range(count):\n", f"for n in range(count):\n    if n == 3: {kill}")
        command = (sys.executable, "-c", script, "{url}/v1", "6")
        done = run_command("watch", "--target", server.url, *OPTIONS, "--", *command, cwd=tmp_path)
    verdict, _ = verdict_of(tmp_path)
    assert done.returncode == 1 and check(verdict, "command") == ("pass", "exit code 0"), done.stdout + done.stderr
    assert verdict.outcomes["ok"] == 3 and verdict.failures


def test_watch_shows_the_exit_code_of_the_command(server: EmbeddedServer, tmp_path: Path) -> None:
    script = 'python3 -c "$0" "$OPENAI_BASE_URL" 2; exit 7'
    done = run_command("watch", "--target", server.url, *OPTIONS, "--", "sh", "-c", script, CLIENT, cwd=tmp_path)
    verdict, _ = verdict_of(tmp_path)
    assert (done.returncode, verdict.outcomes) == (3, {"ok": 2}), done.stdout + done.stderr
    assert check(verdict, "command") == ("unknown", "exit code 7")


def test_watch_says_that_no_request_came_through(server: EmbeddedServer, tmp_path: Path) -> None:
    done = run_command("watch", "--target", server.url, *OPTIONS, "--", "true", cwd=tmp_path)
    assert done.returncode == 3
    assert "UNKNOWN  watch  requests through the proxy: no request came through the proxy" in done.stdout
    assert "give the command {url}" in done.stdout


@pytest.mark.slow
def test_watch_ends_a_command_that_never_ends_with_its_children(server: EmbeddedServer, tmp_path: Path) -> None:
    script = (
        'trap "" TERM; echo $$ >pids; sleep 600 & echo $! >>pids; python3 -c "$0" "$1/v1" 1; while :; do sleep 1; done'
    )
    command = ("sh", "-c", script, CLIENT, "{url}")
    done = run_command("watch", "--target", server.url, "--for", "2s", *OPTIONS, "--", *command, cwd=tmp_path)
    verdict, _ = verdict_of(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert check(verdict, "command")[1].endswith("ended with the watch")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 and not any(psutil.pid_exists(pid) for pid in pids)


def test_watch_keeps_keys_of_its_command_out_of_its_folder(server: EmbeddedServer, tmp_path: Path) -> None:
    script = 'echo my key is $OPENAI_API_KEY; exec python3 -c "$0" "$1/v1" 1'
    command = ("sh", "-c", script, CLIENT, "{url}", "--api-key", "sk-other-1234567890abcdef")
    key = "sk-secret-1234567890abcdef"
    done = run_command("watch", "--target", server.url, *OPTIONS, "--", *command, cwd=tmp_path, OPENAI_API_KEY=key)
    assert key in done.stdout
    _, home = verdict_of(tmp_path)
    found = subprocess.run(["grep", "-rlE", f"{key}|sk-other-1234567890abcdef", home], capture_output=True, text=True)
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no server: give --target URL"),
        (("pytest",), "no server: give --target URL"),
        (("--target", "http://127.0.0.1:9", "--", "no-such-command"), "no-such-command: no such command"),
        (("http://127.0.0.1:9", "--for", "2s", "--", "no-such-command"), "no-such-command: no such command"),
        (("--target", "http://127.0.0.1:9", "--listen", "127.0.0.1:9"), "this is the target"),
        (("--target", "http://127.0.0.1:9", "--listen", "nowhere"), "HOST:PORT"),
        (("--target", "http://127.0.0.1:9", "--target", "http://127.0.0.1:8", "--server-log", "x"), "2 targets and 1 logs"),
        (("--target", "http://127.0.0.1:9", "--attack", "faults.yaml"), "give their command after --"),
    ],
)  # fmt: skip
def test_watch_refuses_what_cannot_be(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faults.yaml").write_text(FAULTS)
    assert message in output_of("watch", *words, code=2)
    assert not (tmp_path / "runs").exists()


def test_watch_refuses_a_taken_port(server: EmbeddedServer) -> None:
    assert "is in use" in output_of("watch", "--target", "http://127.0.0.1:9", "--listen", server.address, code=2)


def test_watch_of_a_target_that_does_not_answer_ends_with_4(unused_port: int, tmp_path: Path) -> None:
    done = run_command("watch", "--target", f"http://127.0.0.1:{unused_port}", *OPTIONS, cwd=tmp_path)
    assert done.returncode == 4 and "was not healthy within 5 s" in done.stderr


def test_watch_attacks_the_path_of_the_command_and_undoes_it(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text(FAULTS)
    options = ("--attack", "faults.yaml", "--authorize", server.address, *OPTIONS)
    done = run_command(
        "watch", "--target", server.url, *options, "--", sys.executable, "-c", CLIENT, "{url}/v1", "4", cwd=tmp_path
    )
    verdict, _ = verdict_of(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert check(verdict, "attack network_latency")[0] == "pass" and verdict.outcomes == {"ok": 4}
    assert verdict.latency_all is not None and (verdict.latency_all.ttft_s.p50 or 0) > 0.3


def test_watch_attacks_nobody_without_authorisation(tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text(FAULTS)
    done = run_command(
        "watch", "--target", "http://192.0.2.1:8000", "--attack", "faults.yaml", "--", "true", cwd=tmp_path
    )
    assert done.returncode == 2 and "--authorize 192.0.2.1:8000" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_replay_sends_the_requests_of_a_watched_command_again(tmp_path: Path) -> None:
    with EmbeddedServer() as server:
        command = (sys.executable, "-c", CLIENT, "{url}/v1", "3")
        run_command("watch", "--target", server.url, *OPTIONS, "--", *command, cwd=tmp_path)
    _, home = verdict_of(tmp_path)
    trace = read_source(home, tmp_path / "scratch")
    assert [send.outcome for send in trace.sends] == ["ok"] * 3 and trace.header.server["dialect"] == "vllm"
    bodies = [json.loads(trace.body_file(send).read_bytes()) for send in trace.sends]
    assert [body["messages"][0]["content"] for body in bodies] == [f"tell a story {n}" for n in range(3)]


@pytest.mark.slow
def test_watch_compares_the_commands_own_result_with_the_wire(server: EmbeddedServer, tmp_path: Path) -> None:
    result = {"num_prompts": 9, "completed": 9, "failed": 0, "endpoint_type": "openai-chat", "p99_ttft_ms": 5.0}
    script = f"{CLIENT}\njson.dump({result}, open('result.json', 'w'))\n"
    command = (sys.executable, "-c", script, "{url}/v1", "4")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "other.json").write_text(json.dumps(result))
    done = run_command("watch", "--target", server.url, *OPTIONS, "--", *command, cwd=tmp_path)
    (tmp_path / "runs" / "other.json").unlink()
    verdict, home = verdict_of(tmp_path)
    again = run_command("judge", str(home), cwd=tmp_path)
    for text in (" ".join(done.stdout.split()), " ".join(again.stdout.split())):
        assert "note vllm bench serve reported 9 of 9 ok; of 4 on the wire all were ok" in text
        assert "TTFT p99" in text
        assert f"result file {tmp_path / 'result.json'} " in text
    assert verdict.reported is not None and verdict.reported.hidden == 5
    assert ["requests ok", "9", "4", "differs"] in reported_rows(verdict)
    assert "reported 9 of 9 ok" in (home / "report.html").read_text().partition("<dl>")[0], "on top of the page"


@pytest.mark.slow
def test_watch_ends_its_command_with_ctrl_c(server: EmbeddedServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    script = "echo $$ >pid; exec sleep 600"
    argv = ("watch", "--target", server.url, *OPTIONS, "--", "sh", "-c", script)
    watching = ForkedCommand(*argv, cwd=tmp_path, env=outside_ci(), output=(str(out), str(out)))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the command")
    pid = int((tmp_path / "pid").read_text())
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 130, out.read_text()
    assert not psutil.pid_exists(pid)
    assert check(verdict_of(tmp_path)[0], "run") == ("unknown", "interrupted by SIGINT")


def test_watch_without_a_command_judges_the_clients_of_its_proxy(
    server: EmbeddedServer, tmp_path: Path, unused_port: int
) -> None:
    out = tmp_path / "out"
    out.touch()
    argv = ("watch", "--target", server.url, "--listen", f"127.0.0.1:{unused_port}", *OPTIONS)
    watching = ForkedCommand(*argv, cwd=tmp_path, env=outside_ci(), output=(str(out), str(out)))
    until(lambda: "proxy listens" in out.read_text(), "the proxy")
    with traffic(f"http://127.0.0.1:{unused_port}"):
        time.sleep(2)
    watching.send_signal(signal.SIGTERM)
    assert watching.wait(60) == 0, out.read_text()
    verdict, home = verdict_of(tmp_path)
    assert verdict.outcomes["ok"] > 3 and verdict.verdict == "pass"
    recorded = b"".join(path.read_bytes() for path in (home / "recording" / "ring").iterdir())
    assert b'"shape"' in recorded and b'"body":' not in recorded
