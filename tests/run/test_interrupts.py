"""Ctrl-C once and twice, and SIGTERM, in each phase of a run."""

import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.embedded_server import EmbeddedServer
from tests.run.conftest import Row, Run, Serve, Start, StartSim
from tests.run.raw_server import answer


def in_time(run: Run, limit_s: float = 30.0) -> int:
    """Its exit code, and the end must come within the promised time."""
    begin = time.monotonic()
    code: int = run.ends()
    assert time.monotonic() - begin < limit_s
    return code


def is_paused(server: EmbeddedServer) -> bool:
    return bool(httpx.get(f"{server.url}/is_paused").json()["is_paused"])


SIGNALS = [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signal_ends_the_load_in_order_and_judges_the_record(
    start: Start, slow_answers: Row, number: int, code: int
) -> None:
    run = start(**slow_answers).loaded()
    run.signal(number)
    assert in_time(run) == code
    verdict = run.verdict()
    assert (verdict["verdict"], verdict["exit_code"], verdict["failures"]) == ("unknown", code, [])
    assert verdict["outcomes"].get("unfinished", 0) == 0, "each request in flight has an end"
    assert (run.folder / "report.html").exists()
    assert "stopping the run cleanly" in run.output
    assert [row["signal"] for row in run.rows(row="run", what="interrupted")] == [signal.Signals(number).name]
    run.all_gone()


@pytest.mark.slow
def test_ctrl_c_undoes_attacks_and_leaves_an_external_server_alone(
    start: Start, sim: StartSim, slow_answers: Row
) -> None:
    server = sim("--flag", "speed=2")
    attacks = [{"admin": "pause", "params": {"mode": "keep"}, "after": "500ms", "for": "5m"}]
    run = start("--target", server.url, "--authorize", server.address, **slow_answers, attacks=attacks)
    run.wait_for(row="attack", what="begin")
    run.note_pids()
    run.wait(lambda: is_paused(server), "the pause")
    run.signal(signal.SIGINT)
    assert in_time(run) == 130
    assert not is_paused(server)
    assert server.process.poll() is None
    assert [r["ok"] for r in run.rows(row="attack", what="undo")] == [True]
    assert run.verdict()["verdict"] != "pass"
    run.all_gone()


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once(start: Start, slow_answers: Row) -> None:
    run = start(**slow_answers).loaded()
    run.signal(signal.SIGINT)
    run.wait_for(row="run", what="interrupted")
    run.signal(signal.SIGINT)
    assert in_time(run, 5.0) == 130
    run.all_gone()
    assert run.again("judge").returncode == 130


def nothing_left(run: Run) -> None:
    assert "interrupted" in run.output.splitlines()[-1]
    assert not list(run.home.glob("runs/*")), "nothing was sent: there is nothing to judge"
    assert "stopping the run" not in run.output
    assert "[load" not in run.output
    run.all_gone()


def catches_sigint(pid: int) -> bool:
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)


MOMENTS_S = [0.3, *(pytest.param(s, marks=pytest.mark.slow) for s in (1.0, 2.0, 4.0, 8.0))]


@pytest.mark.parametrize("moment_s", MOMENTS_S)
def test_ctrl_c_before_the_load_ends_it_with_one_line(start: Start, serve: Serve, moment_s: float) -> None:
    def slowly(_: int, __: Row) -> tuple[int, list[Row]]:
        time.sleep(5)
        return 200, answer(1)

    run = start("--target", serve(slowly), prefix=("/usr/bin/env",))  # a process of its own, which imports all modules
    run.wait(lambda: catches_sigint(run.process.pid), "the start of Python")
    time.sleep(moment_s)
    run.signal(signal.SIGINT)
    assert in_time(run, 2.0) == 130
    nothing_left(run)


@pytest.mark.slow
def test_ctrl_c_while_it_waits_for_a_server(start: Start, unused_port: int) -> None:
    run = start("--target", f"http://127.0.0.1:{unused_port}", "--wait-ready", "5m")
    run.wait_for(row="run", what="begin")
    run.signal(signal.SIGINT)
    assert in_time(run) == 130
    nothing_left(run)


@pytest.mark.slow
def test_ctrl_c_while_its_own_server_starts(start: Start) -> None:
    run = start()
    run.wait_for(row="launch", what="start")
    run.note_pids()
    run.signal(signal.SIGINT)
    assert in_time(run) == 130
    nothing_left(run)


@pytest.mark.slow
def test_signal_while_the_load_process_starts(start: Start, sim: StartSim) -> None:
    """An external server is looked at for 5 s before the load."""
    server = sim()
    run = start("--target", server.url)
    run.wait_for(row="locust", what="start")
    run.note_pids()
    run.signal(signal.SIGTERM)
    assert in_time(run) == 143
    nothing_left(run)
    assert server.process.poll() is None
