from typing import Any

import pytest

from loadchaos.analysis.figures.requests import RequestStats
from loadchaos.analysis.incidents.attribution import AttackLog
from loadchaos.analysis.incidents.tracker import IncidentTracker
from tests.rows import S


def state(at_s: int, was: str, to: str) -> Any:
    row = {"row": "state", "at_ns": at_s * S, "replica": "server", "engine": None, "from": was, "to": to}
    return {**row, "signs": [to], "since_ns": at_s * S}


@pytest.mark.parametrize(
    ("after_s", "load_ended", "kind"), [(15, False, "death"), (5, True, "death"), (5, False, "terminated")]
)
def test_tracker_keeps_a_death_when_what_is_left_is_ended_later(after_s: int, load_ended: bool, kind: str) -> None:
    tracker = IncidentTracker(RequestStats(), AttackLog())
    tracker.load_begin_ns = S
    tracker.on_state(state(2, "starting", "healthy"))
    tracker.on_state(state(100, "healthy", "dead"))
    tracker.load_end_ns = 101 * S if load_ended else None
    tracker.on_state(state(100 + after_s, "dead", "terminated"))
    tracker.finish(130 * S)
    assert [i.kind for i in tracker.real()] == [kind]


@pytest.mark.parametrize("to", ["dead", "hung"])
@pytest.mark.parametrize("has_log", [False, True])
def test_advice_asks_for_a_log_only_where_there_is_none(to: str, has_log: bool) -> None:
    tracker = IncidentTracker(RequestStats(), AttackLog())
    tracker.load_begin_ns, tracker.has_log = S, has_log
    tracker.on_state(state(2, "starting", "healthy"))
    tracker.on_state(state(100, "healthy", to))
    tracker.finish(130 * S)
    (incident,) = tracker.real()
    remedy = incident.named_by().remedy or ""
    assert remedy
    assert ("--server-log" in remedy) is not has_log
