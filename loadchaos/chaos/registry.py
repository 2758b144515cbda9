"""Table of the attack kinds: a profile's key and its factory."""

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
    """Make the attack of a spec, and return it with its kind.

    Raises:
        OptionError: where the spec (a mapping or an object) names no kind.
    """
    for kind, make in ATTACKS.items():
        name = spec.get(kind) if isinstance(spec, Mapping) else getattr(spec, kind, None)
        if name:
            return kind, make(name, params, context)
    raise OptionError(f"an attack needs its kind, as in {{admin: reset_mm_cache, every: 2s}} (got {spec!r})")
