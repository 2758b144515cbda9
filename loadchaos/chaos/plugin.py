"""Attacks that other packages add by the entry points `loadchaos.attacks` (docs/how-to/plugins.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadchaos.chaos.base import Attack, AttackContext
from loadchaos.core.attack_names import PLUGIN_ATTACKS
from loadchaos.core.errors import OptionError, did_you_mean


def make(spec: Any, params: Mapping[str, object], context: AttackContext) -> Attack:
    name = str(spec)
    if name not in set(PLUGIN_ATTACKS):
        hint = did_you_mean(name, list(PLUGIN_ATTACKS), ".")
        raise OptionError(f"attack {name}: no installed plugin has it{hint} `loadchaos plugins` lists those that do")
    attack: Attack = PLUGIN_ATTACKS[name](params, context)
    attack.name = f"plugin_{name}"
    return attack
