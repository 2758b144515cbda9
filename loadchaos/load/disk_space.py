"""Estimate a run's disk use; switch to compact rows when space runs low."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.ledger.rows import DiskRow
from loadchaos.profile.arrivals import planned_requests
from loadchaos.profile.profile import Profile

REQUEST_BYTES = 1_300
"""A begin and an end row (bench/soak.py); long answers and images need a little more."""
SECOND_BYTES = 3_000
"""Heartbeats, metrics, probes and process rows; the server's log comes on top."""
_HOURS_AS_JSON, _PARQUET_RATIO = 2, 1 / 8
"""The current hour and the one before it are JSONL; older ones are Parquet (core/ledger/parquet.py)."""
_SECONDS_PER_REQUEST = 1.0
_USABLE_SHARE = 0.9

_LOW_BYTES, _LOW_SHARE = 2**30, 0.05
_ENOUGH_FACTOR = 1.5
"""Full rows return at this multiple of the low limit, so that the mode does not flap."""
_POLL_S = 2.0
_COMPACT_TEXT = "requests that go well get one row together each second, all others their own"
_FULL_TEXT = "every request has its rows again"


@dataclass(frozen=True)
class DiskEstimate:
    """Bytes that a run will write and bytes that are free."""

    needed: int
    free: int

    @property
    def fits(self) -> bool:
        """True if at least a tenth of the free space remains."""
        return self.needed <= self.free * _USABLE_SHARE

    def describe(self) -> str:
        but = "and" if self.fits else "but only"
        return f"the ledger will need about {_bytes(self.needed)}, {but} {_bytes(self.free)} are free"


class DiskMonitor:
    """Checks the disk of a run folder every 2 s. `low` is set below 1 GB, or below a twentieth of a smaller disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_s = 0.0
        self.low = False

    def poll(self, now_s: float) -> DiskRow | None:
        """Return a `disk` row when free space has crossed the limit, else None."""
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _POLL_S
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:  # the folder is gone: its writers report that
            return None
        least = min(_LOW_BYTES, disk.total * _LOW_SHARE)
        low = disk.free < (least * _ENOUGH_FACTOR if self.low else least)
        if low == self.low:
            return None
        self.low = low
        return {
            "row": "disk",
            "at_ns": time.monotonic_ns(),
            "what": "low" if low else "enough",
            "free_bytes": disk.free,
            "text": f"{_bytes(disk.free)} of disk are free: {_COMPACT_TEXT if low else _FULL_TEXT}",
        }


def _bytes(n: float) -> str:
    return f"{n / 2**30:,.1f} GB" if n >= 2**30 else f"{n / 2**20:,.0f} MB"


def estimate(profile: Profile, seed: int, folder: Path, duration_s: float | None) -> DiskEstimate:
    """Estimate disk use from the plan alone. Users of a closed phase with a duration count as one request a second."""
    planned = planned_requests(profile.load, seed)
    seconds = sum(phase.timed_s or (phase.every or 0.0) * phase.repeat for phase in profile.load)
    users = sum(phase.slots * (phase.for_ or 0.0) for phase in profile.load if phase.kind == "closed")
    requests = planned if planned is not None else users / _SECONDS_PER_REQUEST
    if duration_s is not None and seconds > duration_s:
        requests, seconds = requests * duration_s / seconds, duration_s
    json_share = min(1.0, _HOURS_AS_JSON * HOUR_S / seconds) if seconds else 1.0
    share_written = json_share + (1 - json_share) * _PARQUET_RATIO
    return DiskEstimate(
        int((requests * REQUEST_BYTES + seconds * SECOND_BYTES) * share_written), shutil.disk_usage(folder).free
    )
