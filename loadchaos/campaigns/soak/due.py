"""Decide which run is due now; note missed and skipped starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from loadchaos.campaigns.soak.state import SoakRun, State, Why, iso, parse_time
from loadchaos.profile.cron import Schedule

GRACE = timedelta(minutes=2)
"""Limit for a late start; a later one was missed, as no soak ran or the machine was suspended."""
_LOOK_BACK = timedelta(days=40)
_WRONG_CLOCK = timedelta(days=2)


@dataclass(frozen=True)
class Start:
    """A run to start now: its planned time and the reason."""

    planned: datetime
    why: Why


def poll(state: State, schedule: Schedule, now: datetime, *, busy: bool) -> Start | None:
    """Find the run to start now; note missed and skipped starts in `state`. `busy`: a run is going on."""
    start = _due(state, schedule, now)
    if start is not None and busy:
        _overlap(state, schedule, start)
        return None
    if busy:
        return None
    if state.queued is not None:
        queued, state.queued = parse_time(state.queued), None
        if start is None:
            return Start(queued, "queued")
        state.add(_not_run(queued, "skipped", 1, "the next start was due, too: one run for both"))
    return start


def mark_handled(state: State, now: datetime) -> None:
    """Count all starts until now as handled. A run started with --once stands for them."""
    handled = parse_time(state.handled_to)
    if now > handled or handled - now > _WRONG_CLOCK:
        state.handled_to = iso(now)


def _due(state: State, schedule: Schedule, now: datetime) -> Start | None:
    handled = parse_time(state.handled_to)
    if handled - now > _WRONG_CLOCK:  # written while the clock was wrong: without this nothing would start until then
        state.handled_to, handled = iso(now), now
    due: list[datetime] = []
    for tick in schedule.ticks(max(handled, now - _LOOK_BACK)):
        if tick + schedule.delay(tick, state.name) > now:
            break
        due.append(tick)
    if not due:
        return None
    state.handled_to = iso(due[-1])
    newest = due[-1]
    if now - newest - schedule.delay(newest, state.name) <= GRACE:
        _missed(state, due[:-1], "the run that is due now replaces it")
        return Start(newest, "schedule")
    if schedule.catch_up == "once":
        _missed(state, due, "one run replaces them all" if len(due) > 1 else "one run replaces it")
        return Start(newest, "catch_up")
    _missed(state, due, "not repeated (catch_up: none)")
    return None


def _missed(state: State, ticks: Sequence[datetime], text: str) -> None:
    if ticks:
        since = "" if len(ticks) == 1 else f" (first at {iso(ticks[0])})"
        reason = f"no soak was running, or the machine was suspended{since}; {text}"
        state.add(_not_run(ticks[-1], "missed", len(ticks), reason))


def _overlap(state: State, schedule: Schedule, start: Start) -> None:
    if schedule.overlap == "skip":
        state.add(_not_run(start.planned, "skipped", 1, "a run was going on (overlap: skip)"))
    elif state.queued is None:
        state.queued = iso(start.planned)
    else:
        state.add(_not_run(start.planned, "skipped", 1, "a run was going on and another was queued"))


def _not_run(planned: datetime, what: str, times: int, text: str) -> SoakRun:
    return SoakRun(iso(planned), "schedule", "missed" if what == "missed" else "skipped", times=times, text=text)
