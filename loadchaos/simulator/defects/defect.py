"""Defect: a bug that can be planted into the rules of an engine (engine/rules.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loadchaos.simulator.engine.rules import EngineRules


@dataclass(frozen=True)
class Defect:
    """One bug.

    Args:
        name: its name on the command line and in profiles.
        about: what goes wrong, in one line.
        changes: other values of fields of the rules.
        plant: changes the rules where values are not enough.
        remedies: engine flags with a value; each of them alone prevents the bug.
        upstream: URL of the issue; empty: none is known.
        dialect: the imitated server that has it.
    """

    name: str
    about: str
    changes: Mapping[str, object] = field(default_factory=dict)
    plant: Callable[[EngineRules], None] | None = None
    remedies: Mapping[str, object] = field(default_factory=dict)
    upstream: str = ""
    dialect: str = "vllm"

    def apply(self, rules: EngineRules) -> None:
        for name, value in self.changes.items():
            setattr(rules, name, value)
        if self.plant is not None:
            self.plant(rules)
