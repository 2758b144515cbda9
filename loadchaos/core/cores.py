"""Number of cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota: Path = _QUOTA) -> int:
    """Count the cores of this process, at least 1. A container may use fewer than its machine has: `quota` is the file
    with its limit (cgroup v2).
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    try:
        most, period = quota.read_text().split()
        cores = min(cores, math.ceil(int(most) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):  # no limit: the file is absent or says `max`
        pass
    return max(1, cores)
