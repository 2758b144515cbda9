"""How much disk a run will need, said before it begins: rows a request, figures a second, against what is free."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from loadchaos.plan.profile import Profile
from loadchaos.plan.steps import total

REQUEST_BYTES = 1_300
"""A begin and an end row (bench/soak.py); long answers have more buckets of gaps, images a little more."""
SECOND_BYTES = 3_000
"""Heartbeats, metrics, probes and process rows; the server's log comes on top."""
_USERS_ROUND_S = 1.0
_SPARE = 0.9


@dataclass(frozen=True)
class Room:
    """Bytes that will be written and bytes that are free; `fits` where they leave a tenth."""

    needed: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether it will do."""
        return self.needed <= self.free * _SPARE

    def told(self) -> str:
        """In words."""
        need, free = (
            f"{n / 2**30:,.1f} GB" if n >= 2**30 else f"{n / 2**20:,.0f} MB" for n in (self.needed, self.free)
        )
        return f"the record will take about {need}, {free} are free" + ("" if self.fits else ": too little")


def predicted(profile: Profile, seed: int, folder: Path, duration_s: float | None) -> Room:
    """From the plan alone. Users that go on for a time are taken to send one request a second each."""
    known = total(profile, seed)
    seconds = sum(phase.for_ or (phase.every or 0.0) * phase.repeat for phase in profile.load)
    users = sum(phase.slots * (phase.for_ or 0.0) for phase in profile.load if phase.kind == "closed")
    requests = known if known is not None else users / _USERS_ROUND_S
    if duration_s is not None and seconds > duration_s:
        requests, seconds = requests * duration_s / seconds, duration_s
    return Room(int(requests * REQUEST_BYTES + seconds * SECOND_BYTES), shutil.disk_usage(folder).free)
