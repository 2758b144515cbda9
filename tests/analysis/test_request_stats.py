"""RequestStats: requests that no slot was free for."""

from __future__ import annotations

from typing import Any

import pytest

from loadchaos.analysis.request_stats import RequestStats

S = 1_000_000_000


def end(n: int) -> Any:
    return {"row": "end", "id": f"r-{n}", "phase": 2, "traffic": "t", "outcome": "ok", "at_ns": n * S, "due_ns": n * S}


@pytest.mark.parametrize(
    ("why", "count", "limited"), [("no_slot", 3, True), ("no_slot", 1, False), ("stopped", 9, False)]
)
def test_request_stats_missed_for_want_of_a_slot_limit_their_phase(why: str, count: int, limited: bool) -> None:
    stats = RequestStats()
    for n in range(1, 101):
        stats.end(end(n))
    missed: Any = {"row": "missed", "at_ns": S, "traffic": "t", "phase": 2, "why": why, "count": count}
    stats.miss(missed)
    assert (stats.missed[why], stats.total()["missed"]) == (count, count)
    assert stats.phases[2].no_slot == (count if why == "no_slot" else 0)
    assert (stats.phases[2].slots_reason("max_in_flight") is not None) is limited
    assert stats.phases[2].limit_reason() is None
