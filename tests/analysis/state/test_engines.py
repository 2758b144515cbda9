from typing import Any

from loadchaos.analysis.state.engines import EngineStates
from tests.analysis.conftest import History
from tests.rows import S


def scrape(engines: EngineStates, seconds: range, **running: float) -> list[Any]:
    """One scrape a second; engines named `_stuck` keep their counters."""
    rows = []
    for second in seconds:
        for n, (name, n_running) in enumerate(running.items()):
            count = 0.0 if name.endswith("_stuck") else float(second)
            values = {"requests_running": n_running, "iterations_total": 1000 * n + count}
            at_ns, engine = second * S, str(n)
            rows += engines.on_metrics(
                {
                    "row": "metrics",
                    "at_ns": at_ns,
                    "replica": "server",
                    "engine": engine,
                    "took_ns": 0,
                    "values": values,
                }
            )
    return rows


def test_engine_that_is_stuck_is_degraded_then_hung() -> None:
    rows = scrape(EngineStates("server"), range(1, 90), works=5, is_stuck=3)
    assert [(r["engine"], r["to"]) for r in rows] == [("1", "degraded"), ("1", "hung")]
    assert rows[0]["noticed_after_s"] <= 16
    assert "3 running requests" in rows[1]["signs"][0]


def test_engine_that_works_again_is_healthy() -> None:
    engines = EngineStates("server")
    scrape(engines, range(1, 90), works=5, is_stuck=3)
    rows = scrape(engines, range(90, 95), works=5, moves=3)
    assert [(r["engine"], r["to"]) for r in rows] == [("1", "healthy")]


def test_engine_states_ignore_idle_and_single_engines() -> None:
    assert scrape(EngineStates("server"), range(1, 200), works=5, idle_stuck=0) == []
    assert scrape(EngineStates("server"), range(1, 200), is_stuck=5) == []


def test_engine_hang_is_an_incident_of_its_own(history: History) -> None:
    history.begin().work(5)
    rows = scrape(EngineStates("server"), range(1, 90), works=5, is_stuck=3)
    for row in rows:
        history.rows.append({**row, "at_ns": history.now, "since_ns": history.now})
    verdict = history.work(30).end().verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("alive_but_hung", "hang")]
    assert verdict["incidents"][0]["replica"] == "server engine 1"
    assert [s["state"] for s in verdict["states"] if s["engine"] is None and s["state"] in ("hung", "dead")] == []
