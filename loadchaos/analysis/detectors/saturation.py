"""What strains a machine or a process before it breaks: a GPU that slows itself down, a full disk, no more files to open.

Pure functions over readings, oldest first. What was so before the run is not its doing.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.core.model import GPU_SLOWED

SLOWED_S = 30.0
_FEWEST = 3
_FULL_SHARE, _FULL_BYTES = 0.01, 1 << 30
_OPEN_SHARE = 0.95


def slowed(readings: Sequence[tuple[float, int]]) -> tuple[float, str] | None:
    """(seconds, why) of a slowdown that lasts until the newest of the (seconds, reasons), if it has lasted 30 s or more."""
    stretch: list[tuple[float, int]] = []
    for at_s, reasons in reversed(readings):
        if not reasons & sum(GPU_SLOWED):
            break
        stretch.append((at_s, reasons))
    if len(stretch) < _FEWEST or stretch[0][0] - stretch[-1][0] < SLOWED_S:
        return None
    why = ", ".join(words for bit, words in GPU_SLOWED.items() if any(reasons & bit for _, reasons in stretch))
    return stretch[0][0] - stretch[-1][0], why


def filled(readings: Sequence[tuple[float, float]]) -> bool:
    """Whether a disk of (free, size) bytes became full: under 1 % and 1 GiB now, and not so at first."""

    def full(free: float, size: float) -> bool:
        return size > 0 and free < min(_FULL_SHARE * size, _FULL_BYTES)

    return len(readings) > 1 and full(*readings[-1]) and not full(*readings[0])


def exhausted(readings: Sequence[tuple[float, float]]) -> bool:
    """Whether of (open, most) files 95 % came to be open, and were not at first."""

    def near(now: float, most: float) -> bool:
        return most > 0 and now >= _OPEN_SHARE * most

    return len(readings) > 1 and near(*readings[-1]) and not near(*readings[0])
