"""Which run is due now: starts that come, that were missed, that meet a run still going on. Pure but for its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from loadchaos.profile.cron import Schedule
from loadchaos.runner.soak.state import SoakRun, State, Why, iso, when

GRACE = timedelta(minutes=2)
"""How late a start may be and still be on time: longer, and nobody was here or the machine slept."""
_LOOK_BACK = timedelta(days=40)
_WRONG_CLOCK = timedelta(days=2)


@dataclass(frozen=True)
class Start:
    """A run to begin now, and which planned start it is."""

    planned: datetime
    why: Why


def turn(state: State, schedule: Schedule, now: datetime, *, busy: bool) -> Start | None:
    """What is to be started now, if anything. Starts that fall away are noted in `state`, which the caller saves first."""
    start = _due(state, schedule, now)
    if start is not None and busy:
        _overlap(state, schedule, start)
        return None
    if busy:
        return None
    if state.queued is not None:
        queued, state.queued = when(state.queued), None
        if start is None:
            return Start(queued, "queued")
        state.note(_fell(queued, "skipped", 1, "the next start had come, too: one run for both"))
    return start


def answered(state: State, now: datetime) -> None:
    """A run begun by hand, or by what keeps the time in our place, is every start until now: none of them was missed."""
    handled = when(state.handled_to)
    if now > handled or handled - now > _WRONG_CLOCK:
        state.handled_to = iso(now)


def _due(state: State, schedule: Schedule, now: datetime) -> Start | None:
    """The start that is due, of all that came since we looked last; `handled_to` goes on behind them."""
    handled = when(state.handled_to)
    if handled - now > _WRONG_CLOCK:  # it was written while the clock was wrong; else nothing would start until then
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
        _missed(state, due[:-1], "the run that is due now makes up for it")
        return Start(newest, "schedule")
    if schedule.catch_up == "once":
        _missed(state, due, "made up for by one run")
        return Start(newest, "catch_up")
    _missed(state, due, "not made up for (catch_up: none)")
    return None


def _missed(state: State, ticks: Sequence[datetime], text: str) -> None:
    if ticks:
        since = "" if len(ticks) == 1 else f", the first at {iso(ticks[0])}"
        state.note(_fell(ticks[-1], "missed", len(ticks), f"no soak was here, or the machine slept{since}; {text}"))


def _overlap(state: State, schedule: Schedule, start: Start) -> None:
    if schedule.overlap == "skip":
        state.note(_fell(start.planned, "skipped", 1, "a run was still going on (overlap: skip)"))
    elif state.queued is None:
        state.queued = iso(start.planned)
    else:
        state.note(_fell(start.planned, "skipped", 1, "a run was still going on and one was waiting already"))


def _fell(planned: datetime, what: str, times: int, text: str) -> SoakRun:
    return SoakRun(iso(planned), "schedule", "missed" if what == "missed" else "skipped", times=times, text=text)
