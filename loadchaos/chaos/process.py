"""Signals to one of the server's processes on this machine: killed, asked to end, or stopped for a while."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from loadchaos.chaos.base import ActResult, AttackedReplica
from loadchaos.chaos.undo_guard import guard
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect

SIGNALS = {"sigkill": signal.SIGKILL, "sigterm": signal.SIGTERM, "sigstop": signal.SIGSTOP}
ROLES = ("engine_core", "api_server", "worker")
_TITLE_CHARS = 160  # as watch/process.py reads titles, so that both give a process the same role

# What clients and log show when a process is gone; each is ours only where that very process is the one that went.
_LOST = ("http_error", "stream_error", "finish_error", "truncated", "connect_error", "reset", "engine_dead_error",
         "engine_death_unexplained", "restart_unexplained")  # fmt: skip
_FROZEN = ("alive_but_hung", "stalled", "timeout", "shm_broadcast_stall")
_EFFECTS: Mapping[tuple[str, str], Sequence[str]] = {
    ("sigkill", "engine_core"): (*_LOST, "engine_core_proc_died"),
    # A worker's end takes the engine core with it, which says so in its own words.
    ("sigkill", "worker"): (
        *_LOST,
        "worker_proc_died",
        "executor_failed",
        "engine_core_fatal",
        "engine_core_proc_died",
    ),
    ("sigkill", "api_server"): _LOST,
    ("sigterm", "engine_core"): (*_LOST, "engine_core_proc_died"),
    ("sigterm", "worker"): (
        *_LOST,
        "worker_proc_died",
        "executor_failed",
        "engine_core_fatal",
        "engine_core_proc_died",
    ),
    ("sigterm", "api_server"): (*_LOST, "server_terminated"),
    ("sigstop", "engine_core"): _FROZEN,
    ("sigstop", "worker"): _FROZEN,
    # Who connects is not even accepted.
    ("sigstop", "api_server"): (*_FROZEN, "server_unreachable", "connect_error"),
}


@dataclass(frozen=True)
class SignalTarget:
    """One process of the server with its role and title."""

    process: psutil.Process
    role: str
    title: str


def make(
    spec: Any,
    params: Mapping[str, Any],
    dialect: Dialect,
    _client: httpx.AsyncClient,
    _redactor: Redactor,
    _version: str | None,
) -> ProcessAttack:
    """The attack that `{process: sigkill, role: engine_core}` means (role in `params`). OptionError where that is none."""
    role = str(params.get("role", ROLES[0]))
    if spec not in SIGNALS:
        raise OptionError(f"attack process: one of {', '.join(SIGNALS)} was expected (got {spec})")
    if role not in ROLES:
        raise OptionError(f"attack {spec}: role is one of {', '.join(ROLES)} (got {role})")
    return ProcessAttack(str(spec), role, dialect.process_roles)


class ProcessAttack:
    """One signal to the process of one role; of several workers the one with the lowest pid."""

    undone_by: str | None = None

    def __init__(self, name: str, role: str, roles: Sequence[tuple[re.Pattern[str], str]]) -> None:
        self.name, self.effects, self.holds = f"{name}_{role}", _EFFECTS[name, role], name == "sigstop"
        self._signal, self._role, self._roles = name, role, roles
        self._aimed: dict[str, SignalTarget | None] = {}
        self._stopped: dict[str, tuple[psutil.Process, subprocess.Popen[bytes]]] = {}

    def about(self, replica: AttackedReplica) -> AttackDetail:
        """Choose the process now; the rows of the act carry its pid and the signal, so that nothing else is blamed on us."""
        target = next((t for t in self._processes(replica) if t.role == self._role), None)
        self._aimed[replica.name] = target
        return {"pid": target.process.pid if target else None, "signal": int(SIGNALS[self._signal])}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        """See Attack."""
        target = self._aimed.get(replica.name)
        if target is None:
            return ActResult(ok=False, text=self._missing(replica))
        begin = time.monotonic_ns()
        try:
            if self._signal == "sigstop":
                self._stopped[replica.name] = (
                    target.process,
                    guard('kill -CONT "$1" 2>/dev/null', str(target.process.pid)),
                )
            target.process.send_signal(SIGNALS[self._signal])  # raises where the pid is another process by now
        except psutil.NoSuchProcess:
            self._release(replica)
            return ActResult(ok=False, text=f"{self._role} (pid {target.process.pid}) was gone already")
        except (psutil.Error, OSError) as e:
            self._release(replica)
            return ActResult(ok=False, text=f"{self._role} (pid {target.process.pid}): {e}")
        text = f"{self._signal.upper()} to {self._role} (pid {target.process.pid})"
        return ActResult(ok=True, text=text, took_ns=time.monotonic_ns() - begin)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        """SIGCONT to what was stopped; a process that ended meanwhile needs none."""
        process = self._release(replica)
        if process is None:
            return ActResult(ok=True, text="nothing to undo")
        try:
            process.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            return ActResult(ok=True, text=f"{self._role} (pid {process.pid}) has ended meanwhile")
        except (psutil.Error, OSError) as e:
            return ActResult(ok=False, text=f"SIGCONT to {self._role} (pid {process.pid}): {e}")
        return ActResult(ok=True, text=f"SIGCONT to {self._role} (pid {process.pid})")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        """Whether such a process of this server is seen on this machine."""
        found = any(t.role == self._role for t in self._processes(replica))
        return (
            ActResult(ok=True, text=f"{self._role} is there")
            if found
            else ActResult(ok=False, text=self._missing(replica))
        )

    def _release(self, replica: AttackedReplica) -> psutil.Process | None:
        process, watch = self._stopped.pop(replica.name, (None, None))
        if watch is not None:
            watch.communicate(b"\n")  # it continues the process itself, which does no harm, and ends
        return process

    def _missing(self, replica: AttackedReplica) -> str:
        found = self._processes(replica)
        if not found:
            return f"no process of {replica.admin_url} is seen on this machine, so none can be signalled"
        seen = ", ".join(f"{t.role} (pid {t.process.pid})" for t in found if t.role != "other")
        return f"{replica.admin_url} has no {self._role} process here; it has: {seen}"

    def _processes(self, replica: AttackedReplica) -> list[SignalTarget]:
        """The server's processes, the lowest pid first; empty where it is not on this machine or gone."""
        root = replica.pid()
        if root is None:
            return []
        try:
            top = psutil.Process(root)
            tree = [top, *sorted(top.children(recursive=True), key=lambda p: p.pid)]
        except psutil.Error:
            return []
        found = []
        for process in tree:
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                title = (" ".join(process.cmdline()).strip() or process.name())[:_TITLE_CHARS]
            except psutil.Error:  # gone in between, or not ours to read
                continue
            default = "api_server" if process.pid == root else "other"
            found.append(SignalTarget(process, next((r for p, r in self._roles if p.search(title)), default), title))
        return found
