from typing import Any

import pytest

from loadchaos.analysis.figures.requests import RequestStats
from tests.rows import S


def end(n: int) -> Any:
    return {"row": "end", "id": f"r-{n}", "phase": 2, "traffic": "t", "outcome": "ok", "at_ns": n * S, "due_ns": n * S}


@pytest.mark.parametrize(
    ("why", "count", "limited"), [("no_slot", 3, True), ("no_slot", 1, False), ("stopped", 9, False)]
)
def test_request_stats_missed_for_want_of_a_slot_limit_their_phase(why: str, count: int, limited: bool) -> None:
    stats = RequestStats()
    for n in range(1, 101):
        stats.on_end(end(n))
    missed: Any = {"row": "missed", "at_ns": S, "traffic": "t", "phase": 2, "why": why, "count": count}
    stats.on_missed(missed)
    assert (stats.missed[why], stats.total()["missed"]) == (count, count)
    assert stats.phases[2].no_slot == (count if why == "no_slot" else 0)
    assert (stats.phases[2].slots_reason("max_in_flight") is not None) is limited
    assert stats.phases[2].limit_reason() is None


def begun(n: int, traffic: str = "t", **more: Any) -> Any:
    return {"row": "begin", "at_ns": n * S, "id": f"{traffic}-{n}", "traffic": traffic, "phase": 0, **more}


def ended(n: int, outcome: str, traffic: str = "t", **more: Any) -> Any:
    return {"row": "end", "at_ns": (n + 1) * S, "id": f"{traffic}-{n}", "traffic": traffic, "outcome": outcome, **more}


def test_request_stats_count_what_has_no_end_as_unfinished() -> None:
    stats = RequestStats()
    for n in range(3):
        stats.on_begin(begun(n))
    stats.on_end(ended(0, "ok"))
    assert stats.finish() == 2
    assert stats.total() == {"ok": 1, "unfinished": 2}
    assert stats.finish() == 0


def test_request_stats_leave_aborted_requests_out_of_shares() -> None:
    stats = RequestStats()
    outcomes = ["ok", "ok", "http_error", "aborted", "aborted", "missed", "shed", "rejected"]
    for n, outcome in enumerate(outcomes):
        stats.on_begin(begun(n))
        stats.on_end(ended(n, outcome, expect=["ok", "rejected"]))
    errors, ok = stats.error_parts()["t"], stats.ok_parts()["t"]
    assert (errors.n, errors.whole) == (2, 5)
    assert (ok.n, ok.whole) == (3, 5)
    assert stats.ok_parts({"t"})["t"].whole == 4  # shed requests have a rule of their own


def test_requests_in_flight_are_those_before_the_first_failure_of_the_last_second() -> None:
    stats = RequestStats()
    for n in range(1, 6):
        stats.on_begin(begun(n))
    stats.on_end(ended(1, "ok", at_ns=6 * S))
    stats.on_end(ended(2, "http_error", at_ns=7 * S))  # long before: another failure
    stats.on_end(ended(3, "stream_error", at_ns=9 * S + 400_000_000))
    stats.on_begin(begun(6, at_ns=9 * S + 500_000_000))  # sent to a dead server
    stats.on_end(ended(4, "stream_error", at_ns=9 * S + 600_000_000))
    assert [sent.id for sent in stats.in_flight_at(10 * S)] == ["t-3", "t-4", "t-5"]
    assert [sent.id for sent in stats.in_flight_at(5 * S)] == ["t-1", "t-2", "t-3", "t-4", "t-5"]
