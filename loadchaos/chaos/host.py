"""What else runs on the server's machine: processes that take its processors, ended with us in whatever way we end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from loadchaos.chaos.base import ActResult, AttackedReplica
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect

_MOST = 1024
_SLOW = ("stalled", "timeout", "alive_but_hung", "shm_broadcast_stall", "rpc_timeout")
# It looks a few hundred times a second whether its parent is still the one that started it.
_SPIN = "import os,sys\nwhile os.getppid() == int(sys.argv[1]):\n for _ in range(100000): pass"


def make(
    spec: Any,
    params: Mapping[str, Any],
    _dialect: Dialect,
    _client: httpx.AsyncClient,
    _redactor: Redactor,
    _version: str | None,
) -> CpuHog:
    """The attack that `{host: cpu, params: {processes: 4}}` means. OptionError where that is none."""
    if spec != "cpu":
        raise OptionError(f"attack host: cpu was expected (got {spec})")
    unknown = [name for name in params if name != "processes"]
    if unknown:
        raise OptionError(f"attack host cpu: its param is processes (got {unknown[0]})")
    wanted = str(params.get("processes", os.cpu_count() or 1))
    if not wanted.isdigit() or not 0 < int(wanted) <= _MOST:
        raise OptionError(f"attack host cpu: processes is a number from 1 to {_MOST} (got {wanted})")
    return CpuHog(int(wanted))


class CpuHog:
    """So many processes beside the server that each take all of a processor they get; as many as it has, by default."""

    name = "host_cpu"
    effects: Sequence[str] = _SLOW
    holds = True
    undone_by: str | None = None

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {}

    def about(self, replica: AttackedReplica) -> AttackDetail:  # noqa: ARG002 - the protocol's; the machine is the aim
        """See Attack."""
        return {"processes": self._processes}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        """See Attack."""
        if replica.pid() is None:
            return ActResult(ok=False, text=_elsewhere(replica))
        begin = time.monotonic_ns()
        running = self._running.setdefault(replica.name, [])
        try:
            for _ in range(self._processes):
                running.append(_spin())
        except OSError as e:
            text = f"{len(running)} of {self._processes} processes could be started, and were ended: {e.strerror}"
            await self.undo(replica)
            return ActResult(ok=False, text=text)
        text = f"{self._processes} processes take what they get of {os.cpu_count()} processors"
        return ActResult(ok=True, text=text, took_ns=time.monotonic_ns() - begin)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        """See Attack."""
        running = self._running.pop(replica.name, [])
        for process in running:
            process.kill()
            process.wait()
        return ActResult(ok=True, text=f"{len(running)} processes ended")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        """Whether the server runs on this machine."""
        here = replica.pid() is not None
        return ActResult(ok=here, text="it runs on this machine" if here else _elsewhere(replica))


def _spin() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-E", "-c", _SPIN, str(os.getpid())], start_new_session=True)


def _elsewhere(replica: AttackedReplica) -> str:
    return f"no process of {replica.admin_url} is seen on this machine, so nothing can be run beside it"
