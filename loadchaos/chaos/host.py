"""Load on the server's machine beside the server. A new kind is a function that makes its Attack from its params, its
entry in HOST_LOADS, and its name in core/attack_names.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from loadchaos.chaos.base import ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.core.attack_names import STALLS
from loadchaos.core.errors import OptionError

_MAX_PROCESSES = 1024
_LEAST_SHARE = 0.1
"""Share of the CPU time of the processors that the busy processes must get: they compete with the server for it."""
# A busy process checks a few hundred times a second whether its parent is still the one that started it.
_SPIN = "import os,sys\nwhile os.getppid() == int(sys.argv[1]):\n for _ in range(100000): pass"


def make(spec: Any, params: Mapping[str, object], _context: AttackContext) -> Attack:
    if spec not in HOST_LOADS:
        raise OptionError(f"attack host: {' or '.join(HOST_LOADS)} was expected (got {spec})")
    return HOST_LOADS[spec](params)


def cpu_hog(params: Mapping[str, object]) -> CpuHog:
    """Make the attack from its params, a number of `processes`. Raises OptionError for anything else."""
    unknown = [name for name in params if name != "processes"]
    if unknown:
        raise OptionError(f"attack host cpu: its param is processes (got {unknown[0]})")
    processes = str(params.get("processes", os.cpu_count() or 1))
    if not processes.isdigit() or not 0 < int(processes) <= _MAX_PROCESSES:
        raise OptionError(f"attack host cpu: processes is a number from 1 to {_MAX_PROCESSES} (got {processes})")
    return CpuHog(int(processes))


class CpuHog(Attack):
    """Busy processes on the server's machine, by default one per processor. They end with loadchaos, however it ends."""

    name = "host_cpu"
    effects = STALLS

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self.fields = {"processes": processes}
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._begin_s: dict[str, float] = {}
        self._idle: dict[str, str] = {}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        """Start the processes; end all of them again where one cannot be started."""
        if replica.pid() is None:
            return ActResult(ok=False, text=_not_local(replica))
        running = self._running.setdefault(replica.name, [])
        self._begin_s[replica.name] = time.monotonic()
        try:
            for _ in range(self._processes):
                running.append(_spin())
        except OSError as e:
            text = f"only {len(running)} of {self._processes} busy processes started, and they were ended: {e.strerror}"
            await self.undo(replica)
            return ActResult(ok=False, text=text)
        text = f"{_busy(self._processes)} started on {os.cpu_count()} processors"
        return ActResult(ok=True, text=text)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        running = self._running.pop(replica.name, [])
        used_s, held_s = sum(map(_cpu_s, running)), time.monotonic() - self._begin_s.get(replica.name, 0.0)
        if used_s < _LEAST_SHARE * held_s * min(len(running), os.cpu_count() or 1):
            self._idle[replica.name] = f"in {held_s:.1f} s they got {used_s:.1f} s of CPU time"
        for process in running:
            process.kill()
            process.wait()
        return ActResult(ok=True, text=f"{_busy(len(running))} ended")

    def without_effect(self, replica: AttackedReplica) -> str:
        return self._idle.pop(replica.name, "")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        here = replica.pid() is not None
        return ActResult(ok=here, text="the server runs on this machine" if here else _not_local(replica))


def _busy(n: int) -> str:
    return f"{n} busy process{'es' if n != 1 else ''}"


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    try:
        times = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _spin() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-E", "-c", _SPIN, str(os.getpid())], start_new_session=True)


def _not_local(replica: AttackedReplica) -> str:
    return f"no process of {replica.admin_url} is visible on this machine, so the CPU load would not affect it"


HOST_LOADS: dict[str, Callable[[Mapping[str, object]], Attack]] = {"cpu": cpu_hog}
