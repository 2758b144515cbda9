"""How much disk a run will need, said before it begins, and how much is left while it goes: then its record gets brief."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.ledger.rows import DiskRow
from loadchaos.profile.pacing import planned_requests
from loadchaos.profile.profile import Profile

REQUEST_BYTES = 1_300
"""A begin and an end row (bench/soak.py); long answers have more buckets of gaps, images a little more."""
SECOND_BYTES = 3_000
"""Heartbeats, metrics, probes and process rows; the server's log comes on top."""
_HOURS_AS_WRITTEN, _PACKED = 2, 1 / 8
"""The hour that is written and the one before it; older ones are Parquet by then (loadchaos/core/ledger/parquet.py)."""
_USERS_ROUND_S = 1.0
_SPARE = 0.9

_LOW_BYTES, _LOW_SHARE = 2**30, 0.05
_ENOUGH = 1.5
"""Times as much as is low: the record is whole again, and does not go to and fro."""
_LOOK_S = 2.0
_BRIEF = "requests that go well get one row together each second, all others their own"
_WHOLE = "every request has its rows again"


@dataclass(frozen=True)
class DiskEstimate:
    """Bytes that will be written and bytes that are free; `fits` where they leave a tenth."""

    needed: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether it will do."""
        return self.needed <= self.free * _SPARE

    def told(self) -> str:
        """In words."""
        told = f"the record will take about {_bytes(self.needed)}, {_bytes(self.free)} are free"
        return told + ("" if self.fits else ": too little")


class DiskMonitor:
    """Looks at the disk of a run folder every two seconds. `low` below a GB, or below a twentieth of a smaller disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_s = 0.0
        self.low = False

    def changed(self, now_s: float) -> DiskRow | None:
        """Give a `disk` row when free space has crossed the limit, else None."""
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _LOOK_S
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:  # the folder is gone: whoever writes there says so
            return None
        least = min(_LOW_BYTES, disk.total * _LOW_SHARE)
        low = disk.free < (least * _ENOUGH if self.low else least)
        if low == self.low:
            return None
        self.low = low
        return {
            "row": "disk",
            "at_ns": time.monotonic_ns(),
            "what": "low" if low else "enough",
            "free_bytes": disk.free,
            "text": f"{_bytes(disk.free)} of disk are free: {_BRIEF if low else _WHOLE}",
        }


def _bytes(n: float) -> str:
    return f"{n / 2**30:,.1f} GB" if n >= 2**30 else f"{n / 2**20:,.0f} MB"


def estimate(profile: Profile, seed: int, folder: Path, duration_s: float | None) -> DiskEstimate:
    """From the plan alone. Users that go on for a time are taken to send one request a second each."""
    known = planned_requests(profile.load, seed)
    seconds = sum(phase.for_ or (phase.every or 0.0) * phase.repeat for phase in profile.load)
    users = sum(phase.slots * (phase.for_ or 0.0) for phase in profile.load if phase.kind == "closed")
    requests = known if known is not None else users / _USERS_ROUND_S
    if duration_s is not None and seconds > duration_s:
        requests, seconds = requests * duration_s / seconds, duration_s
    as_written = min(1.0, _HOURS_AS_WRITTEN * HOUR_S / seconds) if seconds else 1.0
    room = as_written + (1 - as_written) * _PACKED
    return DiskEstimate(int((requests * REQUEST_BYTES + seconds * SECOND_BYTES) * room), shutil.disk_usage(folder).free)
