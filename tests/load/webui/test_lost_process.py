import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.load.webui.conftest import Session
from tests.waiting import until

pytestmark = pytest.mark.slow


def loaded(session: Session, processes: int) -> list[dict[str, Any]]:
    """Press Start and wait until all load processes send.

    Returns their headers.
    """
    form = {"user_count": "10", "spawn_rate": "10"}
    assert httpx.post(session.link("swarm"), data=form, trust_env=False, timeout=30).json()["success"]

    def headers() -> list[dict[str, Any]] | None:
        files = [path.read_text().splitlines() for run in session.runs() for path in run.glob("requests-*.jsonl")]
        all_send = len(files) == processes and all(any('"end"' in line for line in lines) for lines in files)
        return [json.loads(lines[0]) for lines in files] if all_send else None

    return until(headers, "requests of all processes", 90)


def ends_as_unknown(session: Session) -> Path:
    assert session.process.wait(60) == 3, session.output
    (run,) = session.runs()
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["failures"]) == ("unknown", [])
    check = next(c for c in verdict["checks"] if c["name"] == "load_process")
    assert check["verdict"] == "unknown"
    assert "start it again" in session.output
    return run


@pytest.mark.timeout(200)
def test_web_ui_run_stops_when_one_of_two_processes_is_lost(web: Callable[..., Session]) -> None:
    session = web("--processes", "2")
    headers = loaded(session, 2)
    killed, left = (psutil.Process(h["pid"]) for h in headers)
    killed.kill()
    at = time.monotonic_ns()
    run = ends_as_unknown(session)
    assert f"1 of 2 load processes exited early (pid {killed.pid})" in session.output
    orders = [json.loads(line) for line in (run / "control.jsonl").read_text().splitlines()]
    stop = next(row for row in orders if row.get("what") == "stop")
    assert "exited early" in stop["why"]
    assert (stop["at_ns"] - at) / 1e9 < 15, "and not when thirty seconds of silence are over"
    assert not left.is_running()


@pytest.mark.timeout(200)
def test_web_ui_run_stops_when_its_own_process_is_lost(web: Callable[..., Session]) -> None:
    session = web("--processes", "2")
    headers = loaded(session, 2)
    workers = [psutil.Process(h["pid"]) for h in headers]
    workers[0].parent().kill()  # type: ignore[union-attr]  # they have one
    ends_as_unknown(session)
    assert not any(w.is_running() for w in workers), "nobody sends unwatched"
