import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import from_mapping
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.options import Options
from loadchaos.run.pause_gate import PauseGate
from loadchaos.run.prepare import Preparation
from loadchaos.run.run import run
from loadchaos.run.server_under_test import ServerUnderTest
from tests.run.conftest import FOR_LONG, SMALL, Row, Start
from tests.schemas import validate
from tests.waiting import until
from tests.warm_command import outside_ci

PROFILE = {**SMALL, "load": FOR_LONG}
PLACES: list[Any] = [
    pytest.param(PauseGate, "tick", id="in the middle of the load"),
    pytest.param(Preparation, "_attack_injector", id="before the load", marks=pytest.mark.slow),
    pytest.param(ServerUnderTest, "stop", id="at the end", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("room", "name"), PLACES)
def test_bug_of_ours_ends_in_a_verdict_and_a_traceback_file(
    room: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bug leaves a verdict that is no pass, a report, a traceback."""
    right = getattr(room, name)
    broken: list[Any] = []

    def wrong(self: Any, *args: Any, **more: Any) -> Any:
        broken.append((self, args, more))
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(room, name, wrong)
    monkeypatch.delenv("CI", raising=False)
    options = Options(out=tmp_path, embedded=True, duration_s=2.0)
    result = asyncio.run(_run_and_clean_up(options, right if room is ServerUnderTest else None, broken))
    assert result.exit_code == 70
    assert "ZeroDivisionError: of the test" in str(result.error)
    assert "of the test" in (result.folder.path / "loadchaos-error.txt").read_text()
    verdict = json.loads(result.folder.verdict.read_text())
    validate(verdict)
    assert (verdict["verdict"], verdict["failures"]) == ("unknown", [])
    assert result.folder.report_html.exists()


async def _run_and_clean_up(options: Options, stop: Any, broken: list[Any]) -> Any:
    result = await run(from_mapping(PROFILE, full_registry()), options, Interrupts())
    if stop is not None:  # what the test kept from being stopped
        server, args, more = broken[0]
        await stop(server, *args, **more)
    return result


@pytest.mark.slow
def test_supervisor_killed_is_no_death_of_the_server(start: Start, for_long: Row) -> None:
    run = start(**for_long).loaded()
    run.signal(signal.SIGKILL, "supervisor")
    assert run.ends() == 3
    assert run.verdict()["failures"] == []
    assert run.check("watching")["verdict"] == "unknown"
    run.all_gone()


@pytest.mark.slow
def test_files_named_as_libraries_in_the_current_folder_do_not_run(start: Start, tmp_path: Path) -> None:
    for name in ("psutil", "orjson", "json", "locust", "httpx", "yaml"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert start().ends() == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_load_process_that_hangs_is_ended(start: Start, slow_answers: Row) -> None:
    run = start(**slow_answers).loaded()
    run.signal(signal.SIGSTOP, "locust")
    assert run.ends(90) == 3
    assert "wrote nothing for 30 s and was ended" in " ".join(run.output.split())
    assert run.verdict()["verdict"] == "unknown"
    assert run.verdict()["outcomes"]["unfinished"] > 0
    run.all_gone()


@pytest.mark.slow
def test_terminal_lost_ends_the_run_in_order(start: Start, slow_answers: Row) -> None:
    run = start(**slow_answers).loaded()
    run.signal(signal.SIGHUP)
    assert run.ends() == 143
    assert run.verdict()["verdict"] == "unknown"
    run.all_gone()


@pytest.mark.slow
def test_terminal_stopped_stops_neither_load_nor_verdict(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(json.dumps({**PROFILE, "load": [{"rate": "10/s", "for": "4s"}]}))
    ours, theirs = pty.openpty()
    env = {**outside_ci(), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "loadchaos", "run", "small.yaml", "--exporter-port", "0"],
        cwd=tmp_path, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        # Nobody reads the terminal, and the verdict comes all the same.
        done = until(lambda: next(iter(tmp_path.glob("runs/*/verdict.json")), None))
        verdict = json.loads(done.read_text())
        assert (verdict["verdict"], verdict["outcomes"]) == ("pass", {"ok": 40})
        reader = threading.Thread(target=_read_all, args=(ours,), daemon=True)
        reader.start()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_all(fd: int) -> None:
    try:
        while os.read(fd, 1 << 16):
            pass
    except OSError:  # the other side has closed the terminal
        return


JUDGES_FOR_EVER = """
import sys, time
import loadchaos.run.finalize
from loadchaos.cli.main import main
loadchaos.run.finalize.conclude = lambda *_, **__: time.sleep(300)
sys.argv[1:] = ["run", "small.yaml", "--exporter-port", "0", "--duration", "1s"]
main()
"""


@pytest.mark.slow
def test_ctrl_c_twice_leaves_a_slow_judge(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(json.dumps(PROFILE))
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", JUDGES_FOR_EVER], cwd=tmp_path, env=outside_ci(), stdout=output, stderr=output
        )
    try:
        events = until(lambda: next(iter(tmp_path.glob("runs/*/events.jsonl")), None))
        until(lambda: b'"what":"end","' in events.read_bytes() or b'"what":"end"}' in events.read_bytes())
        process.send_signal(signal.SIGINT)
        until(lambda: b"press Ctrl-C again to stop at once" in (tmp_path / "output").read_bytes())
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert (
            b"the run was not judged; judge it with: loadchaos judge runs/small-" in (tmp_path / "output").read_bytes()
        )
    finally:
        process.kill()
        process.wait()
