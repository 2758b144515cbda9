"""Process attacks: a signal to one of the server's local processes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from loadchaos.chaos.base import NOTHING_TO_UNDO, ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.chaos.signals import SIGNALS
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.lifetime import guard
from loadchaos.core.model import SERVER_ROLES

_TITLE_CHARS = 160  # as server/monitor/processes.py reads titles, so that both give a process the same role

_SHOWN_WITHIN_S = 2.0
"""A signal shows in the state of a process within microseconds, but for one that waits in the kernel for a device."""
_LOOK_EVERY_S = 0.005


@dataclass(frozen=True)
class SignalTarget:
    """One process of the server with its role and title."""

    process: psutil.Process
    role: str
    title: str


def make(spec: Any, params: Mapping[str, object], context: AttackContext) -> ProcessAttack:
    role = str(params.get("role", SERVER_ROLES[0]))
    if spec not in SIGNALS:
        raise OptionError(f"attack process: one of {', '.join(SIGNALS)} was expected (got {spec})")
    if role not in SERVER_ROLES:
        raise OptionError(f"attack {spec}: role is one of {', '.join(SERVER_ROLES)} (got {role})")
    return ProcessAttack(str(spec), role, context.dialect.process_roles)


class ProcessAttack(Attack):
    """A signal to the process of one role, of several workers to the one with the lowest pid."""

    def __init__(self, name: str, role: str, role_patterns: Sequence[tuple[re.Pattern[str], str]]) -> None:
        self._signal = SIGNALS[name]
        self.name, self.effects = f"{name}_{role}", self._signal.effects[role]
        self.holds = self._signal.undo_number is not None
        self._role, self._role_patterns = role, role_patterns
        self._aimed: dict[str, SignalTarget | None] = {}
        self._held: dict[str, tuple[psutil.Process, subprocess.Popen[bytes]]] = {}

    def row_fields(self, replica: AttackedReplica) -> AttackDetail:
        """Choose the process, and return its pid and the signal, so that nothing else is blamed on us."""
        target = next((t for t in self._processes(replica) if t.role == self._role), None)
        self._aimed[replica.name] = target
        return {"pid": target.process.pid if target else None, "signal": int(self._signal.number)}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        target = self._aimed.get(replica.name)
        if target is None:
            return ActResult(ok=False, text=self._missing(replica))
        named = f"{self._role} (pid {target.process.pid})"
        try:
            if self.holds:
                undo = guard(self._signal.undo_shell, str(target.process.pid))
                self._held[replica.name] = (target.process, undo)
            target.process.send_signal(self._signal.number)  # raises where the pid is another process by now
        except psutil.NoSuchProcess:
            self._release(replica)
            return ActResult(ok=False, text=f"{named} had already ended")
        except (psutil.Error, OSError) as e:
            self._release(replica)
            return ActResult(ok=False, text=f"{named}: {e}")
        sent = f"{self._signal.number.name} to {named}"
        if await self._took_effect(target.process):
            return ActResult(ok=True, text=sent)
        return ActResult(ok=None, text=f"{sent}, and within {_SHOWN_WITHIN_S:g} s its state did not show it")

    async def _took_effect(self, process: psutil.Process) -> bool:
        """True where the state of the process shows it, or where the signal may take its time."""
        until_s = time.monotonic() + _SHOWN_WITHIN_S
        while self._signal.shown_by and _state(process) not in self._signal.shown_by:
            if time.monotonic() > until_s:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True

    async def undo(self, replica: AttackedReplica) -> ActResult:
        process = self._release(replica)
        if process is None or self._signal.undo_number is None:
            return NOTHING_TO_UNDO
        named, signal_name = f"{self._role} (pid {process.pid})", self._signal.undo_number.name
        try:
            process.send_signal(self._signal.undo_number)
        except psutil.NoSuchProcess:
            return ActResult(ok=True, text=f"{named} has ended meanwhile")
        except (psutil.Error, OSError) as e:
            return ActResult(ok=False, text=f"{signal_name} to {named}: {e}")
        return ActResult(ok=True, text=f"{signal_name} to {named}")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        if any(t.role == self._role for t in self._processes(replica)):
            return ActResult(ok=True, text=f"{self._role} was found")
        return ActResult(ok=False, text=self._missing(replica))

    def _release(self, replica: AttackedReplica) -> psutil.Process | None:
        process, undo = self._held.pop(replica.name, (None, None))
        if undo is not None:
            undo.communicate(b"\n")  # it continues the process itself, which does no harm, and ends
        return process

    def _missing(self, replica: AttackedReplica) -> str:
        found = self._processes(replica)
        if not found:
            return f"no process of {replica.admin_url} is visible on this machine, so none can be signalled"
        others = ", ".join(f"{t.role} (pid {t.process.pid})" for t in found if t.role != "other")
        return f"{replica.admin_url} has no {self._role} process here; it has: {others}"

    def _processes(self, replica: AttackedReplica) -> list[SignalTarget]:
        """Return the server's local processes, the lowest pid first; none where it is not on this machine or has ended."""
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
            except psutil.Error:  # it ended in between, or we may not read it
                continue
            default = "api_server" if process.pid == root else "other"
            role = next((r for p, r in self._role_patterns if p.search(title)), default)
            found.append(SignalTarget(process, role, title))
        return found


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status()) if process.is_running() else psutil.STATUS_DEAD
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD
    except psutil.Error:
        return ""
