"""Soak loop: start due runs, watch, note results, delete old runs. `Soak.poll` is called each second and saves
soak.json before every action that a kill could interrupt.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.soak import due, retention
from loadchaos.campaigns.soak.child import FinishedRun, SoakChild
from loadchaos.campaigns.soak.state import Running, SoakRun, What, Why, format_time, iso, load, parse_time, save
from loadchaos.core import exit_codes
from loadchaos.core.errors import LedgerError
from loadchaos.core.units import format_duration
from loadchaos.profile.cron import Schedule
from loadchaos.report.formatting import duration
from loadchaos.report.html import trend, trend_page

_POLL_S = 1.0
_OVERTIME_S = 600.0
"""Time for drain, undo and verdict beyond `max_duration`; then the run gets SIGTERM."""
_KILL_AFTER_S = 120.0


class SoakClock:
    """Wall clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait; a suspended machine waits longer."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Order:
    """Settings of a soak; `options` are those of `loadchaos run`. `has_seed`: these set the seed of every run."""

    profile: str
    name: str
    schedule: Schedule
    home: Path
    options: tuple[str, ...] = ()
    duration_s: float | None = None
    has_seed: bool = False


class Soak:
    """The soak of one folder. Raises OptionError when another one uses it."""

    def __init__(self, order: Order, clock: SoakClock, child: SoakChild, campaign: Campaign) -> None:
        self._campaign, self._interrupts, self._print = campaign, campaign.interrupts, campaign.print_line
        self._order, self._clock, self._child = order, clock, child
        campaign.lock(f"the soak of {order.profile}", clock.now())
        self.state = load(campaign, order.profile, order.name, clock.now())
        self._signal_sent: int | None = None
        self._saved = deepcopy(self.state)
        save(campaign, self.state)
        retention.sweep(order.home)

    def close(self) -> None:
        self._campaign.close()

    def forever(self) -> int:
        self._print(f"{self._order.name}: {self._order.schedule.describe()}")
        self._print_next()
        error = ""
        while not self._interrupts:
            try:
                self.poll()
                error = ""
            except LedgerError as e:  # a full disk may have space again before the next run
                if str(e) != error:
                    error = str(e)
                    self._print(error)
            self._clock.sleep(_POLL_S)
        self._end_run()
        return self._interrupts.exit_code

    def once(self) -> int:
        queue = self._order.schedule.overlap == "queue"
        while self._busy():
            if not queue or self._interrupts:
                self._print(f"not started: {self._describe_running()} (overlap: skip)")
                return self._interrupts.exit_code if self._interrupts else exit_codes.USER_ERROR
            self._clock.sleep(_POLL_S)
        due.mark_handled(self.state, self._clock.now())
        self._start(None, "once", quiet=False)
        while self._busy() and not self._interrupts:
            self._clock.sleep(_POLL_S)
        self._end_run()
        if not queue:  # starts during this run are skipped, as the lock skips those of systemd and cron
            due.mark_handled(self.state, self._clock.now())
            self._save()
        if self.state.running is not None:  # it did not end in its time; the next start notes its result
            return self._interrupts.exit_code
        code = self.state.runs[-1].exit_code
        return LedgerError.exit_code if code is None else code

    def poll(self) -> None:
        was_running = self.state.running is not None
        busy = self._busy()
        if was_running and not busy:
            self._print_next()
        known = len(self.state.runs)
        start = due.poll(self.state, self._order.schedule, self._clock.now(), busy=busy)
        for run in self.state.runs[known:]:
            planned = format_time(parse_time(run.planned)) if run.planned else "an unknown time"
            starts = f"{run.times} starts until {planned}" if run.times > 1 else f"the start at {planned}"
            self._print(f"{run.what} {starts}: {run.text}")
        if start is not None:
            self._start(start.planned, start.why, quiet=True)
        self._save()

    def _start(self, planned: datetime | None, why: Why, *, quiet: bool) -> None:
        """Record the start, then start the run. If the soak is killed in between, the next one finds the record."""
        now = self._clock.now()
        running = Running(iso(planned) if planned else None, why, iso(now))
        self.state.running, self._signal_sent = running, None
        try:
            self._save()
        except LedgerError:
            self.state.running, self.state.queued = None, running.planned  # queued until there is disk space
            raise
        running.pid = self._child.start(self._arguments(now, quiet=quiet), quiet=quiet)
        self._save()
        if quiet:
            self._print(f"{format_time(now)}: run started, pid {running.pid} ({why.replace('_', ' ')})")

    def _arguments(self, started: datetime, *, quiet: bool) -> list[str]:
        """Arguments of a run. Its seed is its start time, as a server may have cached the prompts of earlier runs."""
        limits = [d for d in (self._order.duration_s, self._order.schedule.max_duration) if d is not None]
        duration_option = ["--duration", format_duration(min(limits))] if limits else []
        live = ["--no-live"] if quiet else []
        seed = [] if self._order.has_seed else ["--seed", str(int(started.timestamp()))]
        return [
            self._order.profile,
            *self._order.options,
            *seed,
            "--out",
            str(self._order.home),
            *duration_option,
            *live,
        ]

    def _busy(self) -> bool:
        """True while a run is going on; notes the result of one that has ended."""
        running = self.state.running
        if running is None:
            return False
        if not self._child.alive():
            self._finish(running)
            return False
        if running.pid is None:  # started by a soak that was killed before it could record the pid
            found = self._find(running)
            running.pid = found.pid if found else None
        self._limit_duration(running)
        return True

    def _describe_running(self) -> str:
        running = self.state.running
        if running is None:
            return "a run is going on"
        pid = f"pid {running.pid}, " if running.pid else ""
        return f"a run is going on ({pid}since {format_time(parse_time(running.started))})"

    def _limit_duration(self, running: Running) -> None:
        limit_s = self._order.schedule.max_duration
        if limit_s is None:
            return
        over_s = (self._clock.now() - parse_time(running.started)).total_seconds() - limit_s - _OVERTIME_S
        if over_s > _KILL_AFTER_S and self._signal_sent == signal.SIGTERM:
            self._send(running, signal.SIGKILL)
        elif over_s > 0 and self._signal_sent is None:
            self._send(running, signal.SIGTERM)

    def _send(self, running: Running, number: int) -> None:
        self._signal_sent = number
        self._print(f"the run exceeds max_duration: {signal.Signals(number).name} sent to pid {running.pid}")
        self._child.end(running.pid, number)

    def _end_run(self) -> None:
        if self._interrupts and self.state.running is not None:
            self._child.end(self.state.running.pid, self._interrupts.first)
            for _ in range(int(_KILL_AFTER_S / _POLL_S)):
                if not self._busy():
                    return
                self._clock.sleep(_POLL_S)

    def _find(self, running: Running) -> FinishedRun | None:
        known = {r.folder for r in self.state.runs if r.folder}
        return self._child.find(running.pid, running.started, self._order.name, known)

    def _finish(self, running: Running) -> None:
        """Note the result of a run once, then clean up. A kill in between repeats both."""
        found = self._find(running)
        code = self._child.exit_code()
        if found is not None and found.verdict is None:
            found = self._child.judge(found.name) or found
        if code is None and found is not None:
            code = found.exit_code
        what: What = "ran"
        text = ""
        if found is None:
            what, text = "not_begun", self._child.last_line() if code is not None else "it was killed before it began"
        elif found.verdict is None:
            what, text = "cut_short", "it was killed and cannot be judged"
        now = self._clock.now()
        # The verdict knows when the run ended, even if no soak was running then.
        ended = min(now, parse_time(found.ended)) if found is not None and found.ended else now
        run = SoakRun(
            planned=running.planned,
            why=running.why,
            what=what,
            started=running.started,
            ended=iso(ended),
            exit_code=code,
            verdict=found.verdict if found else None,
            folder=found.name if found else None,
            text=text,
        )
        self.state.add(run)
        self.state.running = None
        # Retried once only: the cause that killed it before it began may do so each time.
        again = found is None and code is None and running.why in ("schedule", "catch_up")
        if again and self._order.schedule.catch_up == "once":
            self.state.queued = self.state.queued or running.planned
        self._save()
        took = duration((ended - parse_time(running.started)).total_seconds())
        result = run.verdict or what.replace("_", " ")
        exit_code = "no exit code" if code is None else f"exit code {code}"
        why = f": {text}" if text else ""
        self._print(f"{format_time(ended)}: {run.folder or 'run without a folder'}: {result}, {exit_code}, {took}{why}")
        self._clean_up(run.folder)

    def _clean_up(self, newest: str | None) -> None:
        """Delete old runs, update the trend page, print unusual figures. An error here ends no soak."""
        home, keep = self._order.home, self._order.schedule.keep
        try:
            for run in retention.expired(home, self.state.runs, keep, self._clock.now()):
                with contextlib.suppress(OSError):  # on a full disk, space matters more than the trend's past
                    trend.remember(home, str(run.folder))
                retention.delete(home, run)
                self._save()
                self._print(f"{run.folder}: deleted (schedule.keep)")
            found = trend_page.write(home, self._order.name)
            if found.runs and found.runs[-1].folder == newest and found.runs[-1].unusual:
                self._print(trend_page.headline(found))
        except Exception as e:  # noqa: BLE001 - an upgrade during a soak may break the page's template
            self._print(f"{home} could not be cleaned up: {e}; delete its oldest runs yourself")

    def _save(self) -> None:
        if self.state != self._saved:
            save(self._campaign, self.state)
            self._saved = deepcopy(self.state)

    def _print_next(self) -> None:
        for line in self._order.schedule.describe_next(self._clock.now(), self._order.name, 1):
            self._print(f"next: {line}")


def soak(order: Order, print_line: Callable[[str], None], *, once: bool) -> int:
    campaign = Campaign(order.home, print_line)
    with (
        contextlib.closing(Soak(order, SoakClock(), SoakChild(order.home), campaign)) as one,
        campaign.interrupts.installed(),
    ):
        return one.once() if once else one.forever()
