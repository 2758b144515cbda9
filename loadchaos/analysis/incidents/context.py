"""Readings of server and devices around an incident. One every five seconds, from a minute before it on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields

from loadchaos.analysis.incidents.record import ReadingRecord
from loadchaos.core.ledger.rows import DeviceRow, MetricsRow
from loadchaos.core.units import NS_PER_S

_BEFORE_NS = 60 * NS_PER_S
_APART_NS = 4_500_000_000
_MOST_KEPT, _MOST_SHOWN = 2_000, 60
_FIGURES = [f.name for f in fields(ReadingRecord) if f.name not in ("at_s", "whose")]


@dataclass(frozen=True)
class Reading:
    """One reading of an engine (`engine 0`) or a device (`gpu0 of host:9400`). A device has no replica."""

    at_ns: int
    replica: str
    whose: str
    values: Mapping[str, float]

    def record(self, base_ns: int) -> ReadingRecord:
        return ReadingRecord(at_s=round((self.at_ns - base_ns) / NS_PER_S, 3), whose=self.whose, **self.values)


def reading(row: MetricsRow | DeviceRow) -> Reading | None:
    """Reading of a `metrics` or `device` row, None without figures."""
    figures = row.get("values") or {}
    values = {name: figures[name] for name in _FIGURES if name in figures}
    if not values:
        return None
    if row["row"] == "metrics":
        return Reading(int(row["at_ns"]), str(row.get("replica")), f"engine {row.get('engine')}", values)
    named = f" ({row['name']})" if row.get("name") else ""
    return Reading(int(row["at_ns"]), "", f"{row.get('device')}{named} of {row.get('host')}", values)


class IncidentContext:
    """Folds readings; `last_minute` gives those before an incident."""

    def __init__(self) -> None:
        self._kept: deque[Reading] = deque(maxlen=_MOST_KEPT)

    def feed(self, found: Reading) -> None:
        while self._kept and found.at_ns - self._kept[0].at_ns > _BEFORE_NS:
            self._kept.popleft()
        self._kept.append(found)

    def last_minute(self, replica: str) -> list[Reading]:
        """Readings of the last minute, one per engine or device and 5 s. Oldest first."""
        kept: list[Reading] = []
        newest: dict[tuple[str, str], int] = {}
        for one in reversed(self._kept):
            key = one.replica, one.whose
            mine = one.replica in ("", replica or one.replica)
            if mine and newest.get(key, one.at_ns + _APART_NS) - one.at_ns >= _APART_NS and len(kept) < _MOST_SHOWN:
                newest[key] = one.at_ns
                kept.append(one)
        return kept[::-1]


def add_later_reading(known: list[Reading], one: Reading, replica: str) -> None:
    """Add a later reading to an incident, at most one every five seconds."""
    if one.replica not in ("", replica or one.replica) or len(known) >= 2 * _MOST_SHOWN:
        return
    last = next((r for r in reversed(known) if (r.replica, r.whose) == (one.replica, one.whose)), None)
    if last is None or one.at_ns - last.at_ns >= _APART_NS:
        known.append(one)
