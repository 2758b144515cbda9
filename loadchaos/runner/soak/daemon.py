"""The soak itself: wait for what is due, begin it as a child, look after it, note what became of it, keep the folder small.

Told in `Soak.turn`, which is called each second and writes soak.json before it does anything that could be lost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from loadchaos.core.errors import LedgerError
from loadchaos.core.units import format_duration
from loadchaos.profile.cron import Schedule
from loadchaos.report.formatting import duration
from loadchaos.report.html import trend, trend_page
from loadchaos.runner.soak import due, retention
from loadchaos.runner.soak.child import FinishedRun, Process, SoakChild
from loadchaos.runner.soak.state import Lock, Running, SoakRun, State, What, Why, iso, load, save, told, when

_POLL_S = 1.0
_OVERTIME_S = 600.0
"""How long after its load should have ended a run is asked to end: drain, undo and verdict belong to it."""
_KILL_AFTER_S = 120.0


class SoakClock(Protocol):
    """Wall clock and waiting, so that nights pass in tests."""

    def now(self) -> datetime:
        """The time, in UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait; the machine may sleep longer."""


class WallClock:
    """The machine's own."""

    def now(self) -> datetime:
        """As in Clock."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """As in Clock."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Order:
    """What is soaked: the profile as the user named it, its name and schedule, the folder, further options of `run`."""

    profile: str
    name: str
    schedule: Schedule
    home: Path
    options: tuple[str, ...] = ()
    duration_s: float | None = None


class Soak:
    """One soak of one folder. Raises OptionError when another holds the folder, LedgerError when state cannot be written."""

    def __init__(self, order: Order, clock: SoakClock, child: SoakChild, say: Callable[[str], None]) -> None:
        self._order, self._clock, self._child, self._say = order, clock, child, say
        self._lock = Lock(order.home, order.profile, clock.now())
        self.state = load(order.home, order.profile, order.name, clock.now())
        self._asked_to_end: int | None = None
        self._ended_with: int | None = None
        self._written = _gist(self.state)
        save(order.home, self.state)
        retention.sweep(order.home)

    def close(self) -> None:
        """Give the folder free."""
        self._lock.close()

    def stop(self, number: int) -> None:
        """A signal came: end the run that goes on, in order, then leave."""
        self._ended_with = number

    # --- the two ways to use it -------------------------------------------------------------------------------------

    def forever(self) -> int:
        """Run the schedule until a signal comes; its exit code."""
        self._say(f"{self._order.name}: {self._order.schedule.describe()}")
        self._tell_next()
        trouble = ""
        while self._ended_with is None:
            try:
                self.turn()
                trouble = ""
            except (
                LedgerError
            ) as e:  # a full disk may have room again before the next night; until then the run goes on
                if str(e) != trouble:
                    trouble = str(e)
                    self._say(trouble)
            self._clock.sleep(_POLL_S)
        self._end_run()
        return 128 + self._ended_with

    def once(self) -> int:
        """One run now, noted as any other; its exit code."""
        wait = self._order.schedule.overlap == "queue"
        while self._busy():
            if not wait or self._ended_with is not None:
                running = self.state.running
                pid = f"pid {running.pid}, " if running and running.pid else ""
                self._say(
                    f"a run goes on already ({pid}since {_told(running.started if running else None)}): overlap is skip"
                )
                return 2 if self._ended_with is None else 128 + self._ended_with
            self._clock.sleep(_POLL_S)
        due.answered(self.state, self._clock.now())
        self._begin(None, "once", quiet=False)
        while self._busy() and self._ended_with is None:
            self._clock.sleep(_POLL_S)
        self._end_run()
        if not wait:  # starts that met this run were left out, as the lock leaves out those of systemd and cron
            due.answered(self.state, self._clock.now())
            self._save()
        if self.state.running is not None:  # it did not end in the time it had; the next start notes what becomes of it
            return 128 + (self._ended_with or 0)
        code = self.state.nights[-1].exit_code
        return LedgerError.exit_code if code is None else code

    def turn(self) -> None:
        """One look at the clock and at the run that goes on."""
        went_on = self.state.running is not None
        busy = self._busy()
        if went_on and not busy:
            self._tell_next()
        seen = len(self.state.nights)
        start = due.turn(self.state, self._order.schedule, self._clock.now(), busy=busy)
        for night in self.state.nights[seen:]:
            starts = f" {night.times} starts up to" if night.times > 1 else ""
            self._say(f"{night.what}{starts} {_told(night.planned)}: {night.text}")
        if start is not None:
            self._begin(start.planned, start.why, quiet=True)
        self._save()

    # --- a run ----------------------------------------------------------------------------------------------------------

    def _begin(self, planned: datetime | None, why: Why, *, quiet: bool) -> None:
        """Written down first: killed between the two, the next start finds a run that was meant and never began."""
        now = self._clock.now()
        running = Running(iso(planned) if planned else None, why, iso(now))
        self.state.running, self._asked_to_end = running, None
        try:
            self._save()
        except LedgerError:
            self.state.running, self.state.queued = None, running.planned  # it waits until there is room
            raise
        running.pid = self._child.start(self._arguments(quiet=quiet), quiet=quiet)
        self._save()
        if quiet:
            self._say(f"{told(now)}: run begun, pid {running.pid} ({why.replace('_', ' ')})")

    def _arguments(self, *, quiet: bool) -> list[str]:
        limits = [d for d in (self._order.duration_s, self._order.schedule.max_duration) if d is not None]
        duration = ["--duration", format_duration(min(limits))] if limits else []
        live = ["--no-live"] if quiet else []
        return [self._order.profile, *self._order.options, "--out", str(self._order.home), *duration, *live]

    def _busy(self) -> bool:
        """Whether a run goes on; one that ended is noted first."""
        running = self.state.running
        if running is None:
            return False
        if not self._child.alive():
            self._finish(running)
            return False
        if running.pid is None:  # begun by a soak that was killed before it could write the pid down
            found = self._find(running)
            running.pid = found.pid if found else None
        self._watch_duration(running)
        return True

    def _watch_duration(self, running: Running) -> None:
        most = self._order.schedule.max_duration
        if most is None:
            return
        over = (self._clock.now() - when(running.started)).total_seconds() - most - _OVERTIME_S
        if over > _KILL_AFTER_S and self._asked_to_end == signal.SIGTERM:
            self._ask_to_end(running, signal.SIGKILL)
        elif over > 0 and self._asked_to_end is None:
            self._ask_to_end(running, signal.SIGTERM)

    def _ask_to_end(self, running: Running, number: int) -> None:
        self._asked_to_end = number
        self._say(f"the run goes on too long: {signal.Signals(number).name} to pid {running.pid}")
        self._child.end(running.pid, number)

    def _end_run(self) -> None:
        """The soak is ended by a signal: the run gets it, and has the time it needs for verdict and report."""
        if self._ended_with is not None and self.state.running is not None:
            self._child.end(self.state.running.pid, self._ended_with)
            for _ in range(int(_KILL_AFTER_S / _POLL_S)):
                if not self._busy():
                    return
                self._clock.sleep(_POLL_S)

    def _find(self, running: Running) -> FinishedRun | None:
        known = {n.folder for n in self.state.nights if n.folder}
        return self._child.find(running.pid, running.started, self._order.name, known)

    def _finish(self, running: Running) -> None:
        """Note what became of a run, once, and only then clean up: all of that may be done again after a kill."""
        found = self._find(running)
        code = self._child.exit_code()
        if found is not None and found.verdict is None:
            found = self._child.judge(found.name) or found
        if code is None and found is not None:
            code = found.exit_code
        what: What = "ran"
        text = ""
        if found is None:
            what, text = "not_begun", self._child.said() if code is not None else "it was killed before it began"
        elif found.verdict is None:
            what, text = "cut_short", "it was killed, and cannot be judged"
        now = self._clock.now()
        # Nobody may have looked when it ended: its verdict knows.
        ended = min(now, when(found.ended)) if found is not None and found.ended else now
        night = SoakRun(
            running.planned,
            running.why,
            what,
            running.started,
            iso(ended),
            code,
            found.verdict if found else None,
            found.name if found else None,
            text=text,
        )
        self.state.note(night)
        self.state.running = None
        # Tried once more and not again: what kills it before it begins may do so each time.
        again = found is None and code is None and running.why in ("schedule", "catch_up")
        if again and self._order.schedule.catch_up == "once":
            self.state.queued = self.state.queued or running.planned
        self._save()
        took = duration((ended - when(running.started)).total_seconds())
        became = night.verdict or what.replace("_", " ")
        why = f": {text}" if text else ""
        self._say(f"{told(ended)}: {night.folder or 'no run'}: {became}, exit code {code}, {took}{why}")
        self._clean_up(night.folder)

    def _clean_up(self, newest: str | None) -> None:
        """Old runs go; the trend page is made anew, and what is unusual in it told. What fails here costs no night."""
        home = self._order.home
        try:
            for night in retention.too_many(home, self.state.nights, self._order.schedule.keep, self._clock.now()):
                with suppress(OSError):  # a disk that is full needs the room more than the trend its past
                    trend.remember(home, str(night.folder))
                retention.delete(home, night)
                self._save()
                self._say(f"{night.folder}: deleted (keep: {self._order.schedule.keep.runs} runs)")
            found = trend_page.write(home, self._order.name)
            if found.runs and found.runs[-1].folder == newest and found.runs[-1].unusual:
                self._say(trend_page.headline(found))
        except Exception as e:  # noqa: BLE001 - an upgrade under a soak may break the page's template: no night ends of it
            self._say(f"{home} could not be cleaned up: {e}; delete its oldest runs yourself")

    def _save(self) -> None:
        gist = _gist(self.state)
        if gist != self._written:
            save(self._order.home, self.state)
            self._written = gist

    def _tell_next(self) -> None:
        for line in self._order.schedule.describe_next(self._clock.now(), self._order.name, 1):
            self._say(f"next: {line}")


def _told(time: str | None) -> str:
    return told(when(time)) if time else "?"


def _gist(state: State) -> tuple[object, ...]:
    """What tells one state from another, quick enough for each second."""
    running = astuple(state.running) if state.running else None
    gone = sum(n.deleted for n in state.nights)
    return state.handled_to, state.queued, running, len(state.nights), gone


def soak(order: Order, say: Callable[[str], None], *, once: bool) -> int:
    """Run the schedule, or once; the exit code. SIGINT, SIGTERM and SIGHUP end the run that goes on and then us."""
    it = Soak(order, WallClock(), Process(order.home), say)
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means: go on without a terminal
                signal.signal(number, lambda n, _: it.stop(signal.SIGTERM if n == signal.SIGHUP else n))
        return it.once() if once else it.forever()
    finally:
        it.close()
