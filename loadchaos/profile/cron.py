"""When a soak starts its runs: a cron line in a time zone, across clock changes, in times and in words.

Ticks are made by cronsim, which fires once in the hour that autumn repeats and at the end of the hour that spring leaves
out, as Debian's cron does. All times that leave this module are in UTC unless they say otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator

from loadchaos.core.units import DurationS, format_duration
from loadchaos.profile.base import Part

_ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


class Keep(Part):
    """What is kept of a schedule's runs: so many, and none older than so many days. Nothing given: the newest 30."""

    runs: int = Field(default=30, gt=0)
    days: int | None = Field(default=None, gt=0)


class Schedule(Part):
    """When a soak starts a run: a cron line in a time zone.

    `jitter` delays each start by a part of it, the same each time it is asked for. `overlap` is what happens to a start
    that is due while a run goes on, `catch_up` to starts that were missed while nothing ran here or the machine slept.
    """

    cron: str
    timezone: str = "UTC"
    jitter: DurationS = 0.0
    overlap: Literal["skip", "queue"] = "skip"
    catch_up: Literal["none", "once"] = "none"
    max_duration: DurationS | None = None
    keep: Keep = Keep()

    @field_validator("cron")
    @classmethod
    def _cron(cls, text: str) -> str:
        line = _ALIASES.get(text.strip().lower(), text)
        if len(line.split()) != 5:
            raise ValueError(f'minute, hour, day, month and weekday were expected, e.g. "0 2 * * *" (got {text!r})')
        try:
            next(CronSim(line, datetime(2027, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as e:
            raise ValueError(f"not a cron line: {str(e) or 'it never comes'} (got {text!r})") from None
        return line

    @field_validator("timezone")
    @classmethod
    def _timezone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"a time zone such as Europe/Berlin or UTC was expected (got {name!r})") from None
        return name

    @field_validator("max_duration")
    @classmethod
    def _max_duration(cls, value: float | None) -> float | None:
        if value is not None and value <= 0:
            raise ValueError("a run lasts longer than 0s")
        return value

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Every time the cron line names after `after`, oldest first, without jitter."""
        zone = ZoneInfo(self.timezone)
        last = after
        for tick in CronSim(self.cron, after.astimezone(zone)):
            # In the repeated hour of autumn a wall clock time can lie before the moment we ask from.
            at = tick.astimezone(UTC)
            if at > last:
                last = at
                yield at

    def delay(self, tick: datetime, name: str) -> timedelta:
        """The jitter of one start: drawn by the profile's name and the time, so a restart does not draw anew."""
        return timedelta(seconds=round(random.Random(f"{name} {tick.isoformat()}").uniform(0, self.jitter), 3))

    def describe_times(self) -> str:
        """`At 02:00 every day, Europe/Berlin, up to 10m later`."""
        explained = CronSim(self.cron, datetime(2027, 1, 1, tzinfo=UTC)).explain()
        return f"{explained}, {self.timezone}" + (
            f", up to {format_duration(self.jitter)} later" if self.jitter else ""
        )

    def describe(self) -> str:
        """`At 02:00 every day, Europe/Berlin, up to 10m later; ...`: the whole schedule for a person."""
        parts = [self.describe_times()]
        over = {"skip": "it is left out", "queue": "it waits for the end of that run, one at most"}
        parts.append(f"where a run goes on already, {over[self.overlap]}")
        late = {
            "none": "starts that were missed are not made up for",
            "once": "missed starts are made up for by one run",
        }
        parts.append(late[self.catch_up])
        if self.max_duration is not None:
            parts.append(f"a run's load ends after {format_duration(self.max_duration)}")
        days = f" of the last {self.keep.days} days" if self.keep.days else ""
        parts.append(f"the newest {self.keep.runs} runs{days} are kept")
        return "; ".join(parts)

    def describe_next(self, now: datetime, name: str, count: int) -> list[str]:
        """The next starts, a line each: in the schedule's zone, in UTC, how long from now, and what the clocks do."""
        zone = ZoneInfo(self.timezone)
        lines = []
        for tick in islice(self.ticks(now), count):
            start = tick + self.delay(tick, name)
            local = start.astimezone(zone)
            line = f"{local:%a %Y-%m-%d %H:%M:%S %Z}  ({start.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC)"
            lines.append(f"{line}, in {_away(start - now)}{_clock_change(tick.astimezone(zone))}")
        return lines


def _away(span: timedelta) -> str:
    minutes = max(0, round(span.total_seconds() / 60))
    return format_duration(minutes * 60) if minutes else "less than a minute"


def _clock_change(local: datetime) -> str:
    """What a person wonders about on the two nights a year."""
    wall = local.replace(tzinfo=None)
    back, on = (local.replace(hour=h, minute=m).utcoffset() for h, m in ((0, 0), (23, 59)))
    if back is None or on is None or back == on:
        return ""
    moved = "on" if on > back else "back"
    again = " (this hour comes twice; it starts in the first)" if _twice(wall, local) else ""
    return f"; the clocks go {moved} that day{again}"


def _twice(wall: datetime, local: datetime) -> bool:
    first, second = (wall.replace(tzinfo=local.tzinfo, fold=f).utcoffset() for f in (0, 1))
    return first is not None and second is not None and first > second
