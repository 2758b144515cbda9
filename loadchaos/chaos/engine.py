"""Engine attacks: faults inside a vLLM that runs with loadchaos-vllm.

The plugin (plugins/vllm) implements the modes. Its trigger file arms them; removing the file disarms them.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from loadchaos.chaos.base import ActResult, AttackContext, AttackedReplica
from loadchaos.chaos.undo_guard import guard
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import AttackDetail

TRIGGER = "LOADCHAOS_SABOTAGE_TRIGGER"
_ENCODER_MISS = ("encoder_cache_miss", "encoder_cache_miss_skipped")
_STALLS = ("alive_but_hung", "stalled", "timeout", "shm_broadcast_stall", "rpc_timeout")
_LOST = ("http_error", "stream_error", "finish_error", "truncated", "connect_error", "reset", "engine_dead_error",
         "engine_death_unexplained", "engine_core_proc_died", "worker_proc_died")  # fmt: skip
MODES: Mapping[str, Sequence[str]] = {
    "encoder_pop": _ENCODER_MISS,
    "encoder_pop_draft": _ENCODER_MISS,
    "step_raise": _LOST,
    "step_sleep": _STALLS,
    "step_hang": _STALLS,
    "step_exit": _LOST,
    "step_segv": _LOST,
    "slow_steps": _STALLS,
    "preempt": ("preemption_storm", "async_placeholder_underflow"),
    "nan_logits": ("wrong_output", "empty"),
}
"""The plugin's modes, each with the failure ids and outcomes it may cause by itself."""
_OPTIONS = ("probability", "seed", "step", "times", "seconds", "factor")


def make(spec: Any, params: Mapping[str, Any], _context: AttackContext) -> EngineAttack:
    """Make the attack of `{engine: encoder_pop, params: {...}}`.

    Raises:
        OptionError: for an unknown mode or option.
    """
    if spec not in MODES:
        raise OptionError(f"attack engine: one of {', '.join(MODES)} was expected (got {spec})")
    unknown = [name for name in params if name not in _OPTIONS]
    if unknown:
        raise OptionError(f"attack {spec}: its params are {', '.join(_OPTIONS)} (got {unknown[0]})")
    return EngineAttack(str(spec), params)


class EngineAttack:
    """One mode of the plugin, in force while the trigger file holds it."""

    holds = True
    undone_by: str | None = None

    def __init__(self, mode: str, params: Mapping[str, Any]) -> None:
        self.name = f"engine_{mode}"
        self.effects = MODES[mode]
        self._order = " ".join([mode, *(f"{name}={value}" for name, value in params.items())])
        self._armed: dict[str, tuple[Path, subprocess.Popen[bytes]]] = {}

    def row_fields(self, replica: AttackedReplica) -> AttackDetail:  # noqa: ARG002 - the protocol's; no replica matters
        """Return the order as written into the trigger file."""
        return {"order": self._order}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        """Write the trigger file."""
        trigger = _trigger_of(replica)
        if trigger is None:
            return ActResult(ok=False, text=_missing(replica))
        begin = time.monotonic_ns()
        undo = guard('rm -f -- "$1"', str(trigger))
        try:
            with trigger.open("x") as f:  # never replaces an order of somebody else
                f.write(self._order + "\n")
        except OSError as e:
            undo.kill()
            undo.communicate()
            return ActResult(ok=False, text=f"{trigger}: {e.strerror}")
        self._armed[replica.name] = (trigger, undo)
        return ActResult(ok=True, text=f"armed by {trigger}: {self._order}", took_ns=time.monotonic_ns() - begin)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        """Remove the trigger file."""
        trigger, undo = self._armed.pop(replica.name, (None, None))
        if trigger is None or undo is None:
            return ActResult(ok=True, text="nothing to undo")
        undo.communicate(b"\n")  # it removes the file itself, and ends
        return ActResult(ok=not trigger.exists(), text=f"disarmed: {trigger} was removed")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        """Check that the server has a trigger file that nobody has written."""
        trigger = _trigger_of(replica)
        if trigger is None:
            return ActResult(ok=False, text=_missing(replica))
        if trigger.exists():
            return ActResult(
                ok=False,
                text=f"{trigger} exists already: another process has armed the fault; remove the file to disarm it",
            )
        return ActResult(ok=True, text=f"{trigger} will arm the fault")


def _trigger_of(replica: AttackedReplica) -> Path | None:
    """Return the trigger file that the server's environment names.

    Returns None where it names none, or where its environment cannot be read.
    """
    pid = replica.pid()
    if pid is None:
        return None
    try:
        value = psutil.Process(pid).environ().get(TRIGGER, "")
    except (psutil.Error, OSError):
        return None
    return Path(value) if value else None


def _missing(replica: AttackedReplica) -> str:
    if replica.pid() is None:
        return f"no process of {replica.admin_url} is visible on this machine"
    return f"the server was not started with {TRIGGER} (install loadchaos-vllm into its environment, see plugins/vllm)"
