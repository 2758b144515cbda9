"""Log lines that were written before a run, and that a log shipper appends late. They tell nothing about the run."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from loadchaos.analysis.classify.prefixes import TIME_KEYS
from loadchaos.core.units import iso_utc

_LATE_S = 26 * 3600.0
"""A line is late if it is older than the run by more than this: a time zone that is missing or wrong explains less."""
_EARLIEST_S = 1.6e9  # 2020
"""An earlier time is that of a clock that was never set, or a number such as 1073741824 bytes."""
_CHARS = 64  # of a line that has its time in front
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d)"
_FRONT = r"^(?:\S+ +\| |\[pod/\S+\] |\([^)]*\) |[A-Z]+:? +|time=)?\W?"  # no time within a message
_STAMPS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_FRONT}(?P<date>\d{{4}}-\d\d-\d\d)[T ]{_CLOCK}(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?",
        rf"{_FRONT}(?P<date>[A-Z][a-z]{{2}} [ \d]\d) {_CLOCK}",  # journald, syslog
        rf"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<date>\d\d-\d\d) {_CLOCK}",  # vLLM
        r"^\W?(?P<epoch>1\d{9})(?:\d{3}){0,3}\b",
    )
)
_JSON_TIME = re.compile(rf'"(?:{"|".join(map(re.escape, TIME_KEYS))})": ?"?(?=\d)(?P<time>[^",}}]+)')


class LateLines:
    """Finds the late lines of each log. A line without a time is as old as the one before."""

    def __init__(self) -> None:
        self._late: dict[str, bool] = {}
        self._count = 0
        self._oldest_s: float | None = None

    def is_late(self, source: str, line: str, begin_s: float, now_s: float) -> bool:
        """True for a late line of a run that began at `begin_s`; `now_s` is the time at which it is read (Unix times)."""
        unix_s = _written_s(line, now_s)
        if unix_s is not None and unix_s >= _EARLIEST_S:
            self._late[source] = unix_s + _LATE_S < begin_s
            if self._late[source]:
                self._oldest_s = min(unix_s, self._oldest_s or unix_s)
        late = self._late.get(source, False)
        self._count += late
        return late

    def notes(self) -> list[str]:
        if self._oldest_s is None:
            return []
        count = "1 line" if self._count == 1 else f"{self._count:,} lines"
        oldest = iso_utc(self._oldest_s, "seconds")
        return [f"server log: {count} came late and are from before the run (the oldest of {oldest}): not judged"]


def _written_s(line: str, now_s: float) -> float | None:
    """Unix time in front of a line or in its JSON record; None where there is none."""
    head = line[:_CHARS]
    if line.startswith("{"):
        found = _JSON_TIME.search(line)
        if found is None:
            return None
        head = found["time"]
    for stamp in _STAMPS:
        if (found := stamp.search(head)) is not None:
            try:
                return _unix_s(found.groupdict(), now_s)
            except ValueError:  # no such day
                return None
    return None


def _unix_s(found: dict[str, str | None], now_s: float) -> float:
    if found.get("epoch"):
        return float(found["epoch"] or 0)
    date, clock = found["date"] or "", found["clock"]
    if date[:4].isdigit():
        return datetime.fromisoformat(f"{date}T{clock}{found['zone'] or '+00:00'}").timestamp()
    form = "%m-%d" if date[0].isdigit() else "%b %d"
    year = datetime.fromtimestamp(now_s + _LATE_S, UTC).year
    written = datetime.strptime(f"{year} {date} {clock} +0000", f"%Y {form} %H:%M:%S %z")
    if written.timestamp() > now_s + _LATE_S:
        written = written.replace(year=year - 1)
    return written.timestamp()
