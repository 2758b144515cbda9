"""`schedule` of a profile: start times of a soak from a cron line. cronsim computes the times. It fires once in the
hour that repeats in autumn, and at the end of the hour that is missing in spring, as Debian's cron does. Times are in
UTC unless a name says otherwise.
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

from loadchaos.core.unit_fields import DurationS
from loadchaos.core.units import describe_duration
from loadchaos.profile.base import ProfilePart

_ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


class Retention(ProfilePart):
    """Number and age in days of the runs that are kept. Default: 30 runs."""

    runs: int = Field(default=30, gt=0)
    days: int | None = Field(default=None, gt=0)


class Schedule(ProfilePart):
    """Start times of a soak: a cron line in a time zone. `jitter` is the maximum random delay of a start, in seconds.
    The delay of one start is always the same. `overlap` says what happens to a start while a run is in progress,
    `catch_up` to starts missed while the machine was off or asleep.
    """

    cron: str
    timezone: str = "UTC"
    jitter: DurationS = 0.0
    overlap: Literal["skip", "queue"] = "skip"
    catch_up: Literal["none", "once"] = "none"
    max_duration: DurationS | None = Field(default=None, gt=0)
    keep: Retention = Retention()

    @field_validator("cron")
    @classmethod
    def _cron(cls, text: str) -> str:
        line = _ALIASES.get(text.strip().lower(), text)
        if len(line.split()) != 5:
            raise ValueError(f'minute, hour, day, month and weekday were expected, e.g. "0 2 * * *" (got {text!r})')
        try:
            next(CronSim(line, datetime(2027, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as e:
            raise ValueError(f"not a cron line: {str(e) or 'it never matches'} (got {text!r})") from None
        return line

    @field_validator("timezone")
    @classmethod
    def _timezone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"a time zone such as Europe/Berlin or UTC was expected (got {name!r})") from None
        return name

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Yield each time of the cron line after `after`, without jitter."""
        zone = ZoneInfo(self.timezone)
        last = after
        for tick in CronSim(self.cron, after.astimezone(zone)):
            # In the hour that repeats in autumn, a wall clock time can be before `after`.
            at = tick.astimezone(UTC)
            if at > last:
                last = at
                yield at

    def delay(self, tick: datetime, name: str) -> timedelta:
        """Jitter of one start. It depends only on the profile's name and the time, so that it survives a restart."""
        return timedelta(seconds=round(random.Random(f"{name} {tick.isoformat()}").uniform(0, self.jitter), 3))

    def describe(self) -> str:
        overlap = {"skip": "is skipped", "queue": "waits for the end of that run (at most one start waits)"}
        catch_up = {"none": "Missed starts are not repeated", "once": "Missed starts are replaced by one run"}
        explained = CronSim(self.cron, datetime(2027, 1, 1, tzinfo=UTC)).explain()
        later = f", up to {describe_duration(self.jitter)} later" if self.jitter else ""
        sentences = [
            f"{explained}, {self.timezone}{later}",
            f"A start during a run {overlap[self.overlap]}",
            catch_up[self.catch_up],
        ]
        if self.max_duration is not None:
            sentences.append(f"The load of a run ends after {describe_duration(self.max_duration)}")
        days = f" of the last {self.keep.days} days" if self.keep.days else ""
        kept = f"{self.keep.runs} runs{days} are" if self.keep.runs > 1 else f"run{days} is"
        sentences.append(f"Only the newest {kept} kept")
        return ". ".join(sentences) + "."

    def describe_next(self, now: datetime, name: str, count: int) -> list[str]:
        """One line for each of the next `count` starts. It has the local time, UTC, the time from now, and a change of
        the clocks.
        """
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
    return describe_duration(minutes * 60) if minutes else "less than a minute"


def _clock_change(local: datetime) -> str:
    wall = local.replace(tzinfo=None)
    first, last = (local.replace(hour=h, minute=m).utcoffset() for h, m in ((0, 0), (23, 59)))
    if first is None or last is None or first == last:
        return ""
    moved = "forward" if last > first else "back"
    again = " (this hour repeats; the run starts in the first one)" if _twice(wall, local) else ""
    return f"; the clocks go {moved} that day{again}"


def _twice(wall: datetime, local: datetime) -> bool:
    first, second = (wall.replace(tzinfo=local.tzinfo, fold=f).utcoffset() for f in (0, 1))
    return first is not None and second is not None and first > second
