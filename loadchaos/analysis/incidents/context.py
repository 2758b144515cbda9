"""What the server and its machines measured around an incident: a reading every five seconds from a minute before it on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from loadchaos.analysis.request_stats import S
from loadchaos.core.ledger.rows import DeviceRow, MetricsRow

_BEFORE_NS = 60 * S
_APART_NS = 4_500_000_000
_MOST_HELD, _MOST_TOLD = 2_000, 60
_OF_A_SERVER = (
    "requests_running", "requests_waiting", "kv_usage_ratio", "generation_tokens_total", "preemptions_total",
    "process_rss_bytes",
)  # fmt: skip
_OF_A_MACHINE = (
    "gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_utilisation_ratio", "gpu_temperature_c", "gpu_power_w",
    "gpu_throttle_reasons", "gpu_xid_last", "host_memory_available_bytes", "host_memory_total_bytes", "disk_free_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """Figures of one engine of a replica (`engine 0`), or of a device (`gpu0 of host:9400`, no replica), at one moment."""

    at_ns: int
    replica: str
    whose: str
    values: Mapping[str, float]

    def to_json(self, base_ns: int) -> dict[str, Any]:
        """As incident.json has it."""
        return {"at_s": round((self.at_ns - base_ns) / S, 3), "whose": self.whose, **self.values}


def reading(row: MetricsRow | DeviceRow) -> Reading | None:
    """What a `metrics` or `device` row says, None where it says nothing of interest."""
    of_server = row.get("row") == "metrics"
    said: Mapping[str, Any] = row.get("values") or {}
    values = {name: said[name] for name in (_OF_A_SERVER if of_server else _OF_A_MACHINE) if name in said}
    if not values:
        return None
    whose = f"engine {row.get('engine')}" if of_server else _device(cast("DeviceRow", row))
    return Reading(int(row["at_ns"]), str(row.get("replica")) if of_server else "", whose, values)


def _device(row: DeviceRow) -> str:
    """`gpu0 (NVIDIA H200) of here`, where NVML tells its name."""
    named = f" ({row['name']})" if row.get("name") else ""
    return f"{row.get('device')}{named} of {row.get('host')}"


class IncidentContext:
    """Folds readings; `so_far` gives those of the last minute, and `goes_on` adds to what an incident has."""

    def __init__(self) -> None:
        self._held: deque[Reading] = deque(maxlen=_MOST_HELD)

    def feed(self, found: Reading) -> None:
        """Fold one; what is older than a minute is dropped."""
        while self._held and found.at_ns - self._held[0].at_ns > _BEFORE_NS:
            self._held.popleft()
        self._held.append(found)

    def so_far(self, replica: str) -> list[Reading]:
        """Of each engine and device the newest, and one every five seconds before it; oldest first."""
        kept: list[Reading] = []
        newest: dict[tuple[str, str], int] = {}
        for one in reversed(self._held):
            key = one.replica, one.whose
            mine = one.replica in ("", replica or one.replica)
            if mine and newest.get(key, one.at_ns + _APART_NS) - one.at_ns >= _APART_NS and len(kept) < _MOST_TOLD:
                newest[key] = one.at_ns
                kept.append(one)
        return kept[::-1]


def goes_on(known: list[Reading], one: Reading, replica: str) -> None:
    """Add a reading of the time since, where there is room and five seconds have passed."""
    if one.replica not in ("", replica or one.replica) or len(known) >= 2 * _MOST_TOLD:
        return
    last = next((r for r in reversed(known) if (r.replica, r.whose) == (one.replica, one.whose)), None)
    if last is None or one.at_ns - last.at_ns >= _APART_NS:
        known.append(one)
