"""What happened in one stretch of time of a run: counts, latencies and the last gauges; folded from ledger rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.model import GPU_SLOWED


class Bucket:
    """One stretch of time. Gauges are kept per worker or replica, so that several add up; the last one counts."""

    __slots__ = ("begun", "devices", "in_flight", "lag_ns", "latency", "outcomes", "server", "tokens", "users")

    def __init__(self) -> None:
        self.begun = 0
        self.tokens = 0
        self.outcomes: Counter[str] = Counter()
        self.latency = LatencyHistograms()
        self.in_flight: dict[str, int] = {}  # by worker
        self.users: dict[str, int] = {}  # by worker
        self.lag_ns = 0
        self.server: dict[str, dict[str, float]] = {}  # by replica and engine: our metric names
        self.devices: dict[str, dict[str, float]] = {}  # by host and device

    def merge(self, later: Bucket) -> None:
        """Add a later stretch to this one."""
        self.begun += later.begun
        self.tokens += later.tokens
        self.outcomes.update(later.outcomes)
        self.latency.merge(later.latency)
        self.in_flight.update(later.in_flight)
        self.users.update(later.users)
        self.lag_ns = max(self.lag_ns, later.lag_ns)
        self.server.update(later.server)
        self.devices.update(later.devices)

    def heartbeat(self, row: Mapping[str, Any]) -> None:
        """A worker's sign of life: what it received since the last one, and how late it is."""
        worker = str(row.get("file", ""))
        self.tokens += int(row.get("tokens") or 0)
        self.in_flight[worker] = int(row.get("in_flight") or 0)
        self.users[worker] = int(row.get("users") or 0)
        self.lag_ns = max(self.lag_ns, int(row.get("lag_ns") or 0))

    def gauge(self, name: str, how: str = "sum") -> float | None:
        """A server metric over all replicas and engines: their sum or their highest; None when nobody said."""
        values = [v[name] for v in self.server.values() if v.get(name) is not None]
        if not values:
            return None
        return sum(values) if how == "sum" else max(values)

    def fullest(self, used: str, *others: str) -> float | None:
        """The largest share of `used` among `used` and `others` of any device; None when nobody said."""
        shares = [
            v[used] / sum(v[name] for name in (used, *others))
            for v in self.devices.values()
            if all(name in v for name in (used, *others)) and any(v[name] for name in (used, *others))
        ]
        return max(shares, default=None)

    def busiest(self, name: str) -> float | None:
        """The highest figure of this name of any device; None when nobody said."""
        return max((v[name] for v in self.devices.values() if name in v), default=None)

    def share(self, part: str, whole: str) -> float | None:
        """The largest share that `part` is of `whole` on any device; None when nobody said."""
        shares = [v[part] / v[whole] for v in self.devices.values() if v.get(whole) and part in v]
        return max(shares, default=None)

    def left(self, free: str, whole: str) -> float | None:
        """What is in use on the fullest device, as a share; None when nobody said."""
        shares = [1 - v[free] / v[whole] for v in self.devices.values() if v.get(whole) and free in v]
        return max(shares, default=None)

    def slowed(self) -> float | None:
        """How many GPUs are held down by heat or power, by their clocks' event reasons; None when nobody said."""
        reasons = [int(v["gpu_throttle_reasons"]) for v in self.devices.values() if "gpu_throttle_reasons" in v]
        return float(sum(bool(r & sum(GPU_SLOWED)) for r in reasons)) if reasons else None

    def host_memory(self) -> float | None:
        """The share of memory in use on the fullest host; None when nobody said."""
        return self.left("host_memory_available_bytes", "host_memory_total_bytes")
