"""Planted bugs. A defect changes a few of the engine's rules (engine/rules.py), so that a bug known from a real server
becomes possible. It never kills by chance: traffic has to bring the engine into the state that triggers it. No other code
knows a defect by its name. A new one is one file with a `Defect` (defect.py) and one entry in `_ALL` below; one that only
changes values of the rules may stand in switches.py.
"""

from __future__ import annotations

from loadchaos.core.errors import did_you_mean
from loadchaos.simulator.defects import (
    device_asserts,
    encoder_release,
    mm_chunk_split,
    pp_illegal_access,
    spoiled_tokens,
    switches,
)
from loadchaos.simulator.defects.defect import Defect
from loadchaos.simulator.engine.rules import EngineRules
from loadchaos.simulator.engine.types import EngineConfig

_ALL = (
    mm_chunk_split.DEFECT,
    pp_illegal_access.DEFECT,
    *device_asserts.DEFECTS,
    *encoder_release.DEFECTS,
    *spoiled_tokens.DEFECTS,
    *switches.DEFECTS,
)
DEFECTS: dict[str, Defect] = {defect.name: defect for defect in _ALL}


def rules_of(config: EngineConfig) -> EngineRules:
    """Make the rules of an engine with the defects of its configuration. Raises ValueError for an unknown defect."""
    rules = EngineRules(config)
    for name in sorted(config.defects):
        if name not in DEFECTS:
            raise ValueError(f"unknown defect {name!r}{did_you_mean(name, DEFECTS)}")
        DEFECTS[name].apply(rules)
    return rules
