"""Record what takes CPU time from loadchaos on its own machine: the hypervisor, the limit of its cgroup, other processes,
and swapping.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from loadchaos.core.ledger.rows import Emit, HostRow

EVERY_S = 5.0
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class HostCounters(NamedTuple):
    """Counters since the machine booted. CPU times are sums over its CPUs, in seconds; periods are of the cgroup."""

    at_s: float
    all_s: float
    idle_s: float
    steal_s: float
    periods: int
    throttled: int
    swapped_bytes: int


async def watch_host(emit: Emit, servers: Callable[[], Sequence[int | None]] = tuple) -> None:
    """Write a row of the last seconds, every five seconds until cancelled. `servers`: roots of the processes of each."""
    before, known = counters(), known_cpu_s(servers())
    while True:
        await asyncio.sleep(EVERY_S)
        now, known_now = counters(), known_cpu_s(servers())
        emit(row_between(before, now, used_s(known, known_now)))
        before, known = now, known_now


def known_cpu_s(servers: Sequence[int | None]) -> dict[int, float] | None:
    """CPU time so far of our processes and those of the servers, by pid. None where the processes of a server are not seen,
    say those of a container: on this machine they would be others.
    """
    found = _tree_cpu_s(os.getpid())
    for root in servers:
        if root is None or not psutil.pid_exists(root):
            return None
        found |= _tree_cpu_s(root)
    return found if servers else None


def _tree_cpu_s(root: int) -> dict[int, float]:
    found: dict[int, float] = {}
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(root)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
    return found


def counters() -> HostCounters:
    """Read the counters; what the system does not count is 0."""
    times = psutil.cpu_times()
    by_state = {state: getattr(times, state, 0.0) for state in _CPU_STATES}
    throttling = _throttling()
    swapped = 0
    with contextlib.suppress(OSError, RuntimeError):
        memory = psutil.swap_memory()
        swapped = memory.sin + memory.sout
    return HostCounters(
        time.monotonic(), sum(by_state.values()), by_state["idle"] + by_state["iowait"], by_state["steal"],
        throttling.get("nr_periods", 0), throttling.get("nr_throttled", 0), swapped,
    )  # fmt: skip


def used_s(before: Mapping[int, float] | None, now: Mapping[int, float] | None) -> float | None:
    """CPU time between two readings of `known_cpu_s`, without that of processes that have ended since."""
    if before is None or now is None:
        return None
    return sum(max(0.0, cpu_s - before.get(pid, 0.0)) for pid, cpu_s in now.items())


def row_between(before: HostCounters, now: HostCounters, known_s: float | None = None) -> HostRow:
    """Make the row; `known_s` is the CPU time of loadchaos and the server, where it is known."""
    all_s = max(now.all_s - before.all_s, 1e-9)
    row: HostRow = {
        "row": "host",
        "at_ns": round(now.at_s * 1e9),
        "seconds": round(now.at_s - before.at_s, 3),
        "cpus": os.cpu_count() or 1,
        "busy": round(1 - (now.idle_s - before.idle_s) / all_s, 4),
        "steal": round((now.steal_s - before.steal_s) / all_s, 4),
        "periods": now.periods - before.periods,
        "throttled": now.throttled - before.throttled,
        "swapped_bytes": now.swapped_bytes - before.swapped_bytes,
    }
    if known_s is not None:
        row["others"] = round(max(0.0, row["busy"] - known_s / all_s), 4)
    with contextlib.suppress(OSError):
        row["governor"] = _GOVERNOR.read_text().strip()
    return row


def _throttling() -> Mapping[str, int]:
    """Read cpu.stat of our cgroup, of version 2 or 1. A container may see its own cgroup as the root."""
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            for folder in (_CGROUPS / controllers / path.lstrip("/"), _CGROUPS / controllers):
                with contextlib.suppress(OSError):
                    pairs = (entry.split() for entry in (folder / "cpu.stat").read_text().splitlines())
                    return {name: int(value) for name, value in pairs}
    return {}
