"""Engine attacks: faults inside a vLLM that runs with loadchaos-vllm. The plugin (plugins/vllm) implements the modes.
Its trigger file arms them; removing the file disarms them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from loadchaos.chaos.base import NOTHING_TO_UNDO, ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.core.attack_names import ENGINE_FAULTS, engine_attack
from loadchaos.core.errors import OptionError
from loadchaos.core.lifetime import guard

TRIGGER = "LOADCHAOS_SABOTAGE_TRIGGER"
_OPTIONS = ("probability", "seed", "step", "times", "seconds", "factor")


def make(spec: Any, params: Mapping[str, object], _context: AttackContext) -> EngineAttack:
    if spec not in ENGINE_FAULTS:
        raise OptionError(f"attack engine: one of {', '.join(ENGINE_FAULTS)} was expected (got {spec})")
    unknown = [name for name in params if name not in _OPTIONS]
    if unknown:
        raise OptionError(f"attack {spec}: its params are {', '.join(_OPTIONS)} (got {unknown[0]})")
    return EngineAttack(str(spec), params)


class EngineAttack(Attack):
    """One mode of the plugin, in force while the trigger file holds it."""

    def __init__(self, mode: str, params: Mapping[str, object]) -> None:
        self.name = engine_attack(mode)
        self.effects = ENGINE_FAULTS[mode]
        self._order = " ".join([mode, *(f"{name}={value}" for name, value in params.items())])
        self.fields = {"order": self._order}
        self._armed: dict[str, tuple[Path, subprocess.Popen[bytes]]] = {}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        trigger = _trigger_of(replica)
        if trigger is None:
            return ActResult(ok=False, text=_missing(replica))
        undo = guard('rm -f -- "$1"', str(trigger))
        try:
            with trigger.open("x") as f:  # never replaces an order of somebody else
                f.write(self._order + "\n")
        except OSError as e:
            undo.kill()
            undo.communicate()
            return ActResult(ok=False, text=f"{trigger}: {e.strerror}")
        self._armed[replica.name] = (trigger, undo)
        return ActResult(ok=True, text=f"armed by {trigger}: {self._order}")

    async def undo(self, replica: AttackedReplica) -> ActResult:
        trigger, undo = self._armed.pop(replica.name, (None, None))
        if trigger is None or undo is None:
            return NOTHING_TO_UNDO
        undo.communicate(b"\n")  # it removes the file itself, and ends
        return ActResult(ok=not trigger.exists(), text=f"disarmed: {trigger} was removed")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
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
    """Return the trigger file that the server's environment names; None where it names none or cannot be read."""
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
