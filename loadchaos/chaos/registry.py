"""Table of the attack kinds: a profile's key, and the function that makes the attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadchaos.chaos import admin, engine, host, network, process
from loadchaos.chaos.base import Attack, AttackContext, AttackFactory
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import AttackKind

ATTACKS: dict[AttackKind, AttackFactory] = {
    "admin": admin.make,
    "process": process.make,
    "engine": engine.make,
    "host": host.make,
    "network": network.make,
}


def make_attack(spec: Any, params: Mapping[str, Any], context: AttackContext) -> tuple[AttackKind, Attack]:
    """Return the kind that a spec (a mapping or an object) names, and its attack. OptionError where it names none."""
    for kind, make in ATTACKS.items():
        name = spec.get(kind) if isinstance(spec, Mapping) else getattr(spec, kind, None)
        if name:
            return kind, make(name, params, context)
    raise OptionError(f"an attack needs its kind, as in {{admin: reset_mm_cache, every: 2s}} (got {spec!r})")
