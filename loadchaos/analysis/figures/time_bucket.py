"""Counts, latencies and last gauges of one time span of a run."""

from __future__ import annotations

from collections import Counter

from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.ledger.rows import DeviceRow, HeartbeatRow, MetricsRow
from loadchaos.core.model import GPU_SLOWED


class Bucket:
    """One time span of a run. Gauges are kept per worker or replica, so that they can be summed; the last value counts."""

    __slots__ = (
        "begun", "devices", "due", "events", "good", "in_flight", "latency", "outcomes", "server",
    )  # fmt: skip

    def __init__(self) -> None:
        self.begun = 0
        self.due = self.good = 0  # requests that had to succeed; of these within every limit of slo
        self.events = 0  # of answers: chunks with tokens, and whole answers
        self.outcomes: Counter[str] = Counter()
        self.latency = LatencyHistograms()
        self.in_flight: dict[str, int] = {}  # by worker
        self.server: dict[str, dict[str, float]] = {}  # by replica and engine: our metric names
        self.devices: dict[str, dict[str, float]] = {}  # by host and device

    def merge(self, later: Bucket) -> None:
        self.begun += later.begun
        self.due += later.due
        self.good += later.good
        self.events += later.events
        self.outcomes.update(later.outcomes)
        self.latency.merge(later.latency)
        self.in_flight.update(later.in_flight)
        self.server.update(later.server)
        self.devices.update(later.devices)

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self.events += int(row.get("tokens") or 0)
        self.in_flight[str(row.get("file", ""))] = int(row.get("in_flight") or 0)

    def gauge(self, name: str, how: str = "sum") -> float | None:
        """Sum or maximum of a server metric over all engines; None without data."""
        values = [v[name] for v in self.server.values() if v.get(name) is not None]
        if not values:
            return None
        return sum(values) if how == "sum" else max(values)

    def fullest(self, used: str, *others: str) -> float | None:
        """Largest share of `used` in `used` and `others` on any device. None without data."""
        shares = [
            v[used] / sum(v[name] for name in (used, *others))
            for v in self.devices.values()
            if all(name in v for name in (used, *others)) and any(v[name] for name in (used, *others))
        ]
        return max(shares, default=None)

    def busiest(self, name: str) -> float | None:
        return max((v[name] for v in self.devices.values() if name in v), default=None)

    def share(self, part: str, whole: str) -> float | None:
        shares = [v[part] / v[whole] for v in self.devices.values() if v.get(whole) and part in v]
        return max(shares, default=None)

    def used_share(self, free: str, whole: str) -> float | None:
        shares = [1 - v[free] / v[whole] for v in self.devices.values() if v.get(whole) and free in v]
        return max(shares, default=None)

    def throttled_gpus(self) -> float | None:
        reasons = [int(v["gpu_throttle_reasons"]) for v in self.devices.values() if "gpu_throttle_reasons" in v]
        return float(sum(bool(r & sum(GPU_SLOWED)) for r in reasons)) if reasons else None

    def host_memory(self) -> float | None:
        return self.used_share("host_memory_available_bytes", "host_memory_total_bytes")


def numbers_of(row: MetricsRow | DeviceRow) -> dict[str, float]:
    return {k: v for k, v in (row.get("values") or {}).items() if isinstance(v, int | float)}
