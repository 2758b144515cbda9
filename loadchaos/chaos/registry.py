"""Table of the attack kinds: a kind of `ATTACK_KINDS` is the file of that name here, whose `make` makes the attack."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from loadchaos.chaos.base import Attack, AttackContext, AttackFactory
from loadchaos.core.attack_names import ATTACK_KINDS, AttackKind
from loadchaos.core.errors import OptionError

ATTACKS: dict[AttackKind, AttackFactory] = {
    kind: import_module(f"loadchaos.chaos.{kind}").make for kind in ATTACK_KINDS
}


def make_attack(
    spec: Mapping[str, object], params: Mapping[str, object], context: AttackContext
) -> tuple[AttackKind, Attack]:
    """Make the attack of a spec, and return it with its kind. Raises OptionError where the spec names no kind."""
    for kind, make in ATTACKS.items():
        if name := spec.get(kind):
            return kind, make(name, params, context)
    raise OptionError(f"an attack needs its kind, as in {{admin: reset_mm_cache, every: 2s}} (got {spec!r})")
