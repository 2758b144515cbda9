"""Warm-up of a load: requests that are left out of its figures.

Their outcomes count: a failure during the warm-up is a failure of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadchaos.analysis.verdict.model import WarmUpFigures
from loadchaos.core.units import NS_PER_S


class WarmUp:
    """Tells which requests belong to the warm-up. They are those of some phases, and those due in the first `seconds`
    of the load.
    """

    def __init__(self, rule: Mapping[str, Any] | None = None) -> None:
        """Take the rule of `Terms.warm_up`; without one nothing is left out."""
        self._rule = dict(rule or {})
        self._phases = frozenset(self._rule.get("phases") or ())
        self._length_ns = round(float(self._rule.get("seconds") or 0.0) * NS_PER_S)
        self._begin_ns: int | None = None
        self.left_out = 0

    def covers(self, row: Mapping[str, Any]) -> bool:
        if not self._rule:
            return False
        if self._length_ns:
            due_ns = int(row.get("due_ns") or row.get("at_ns") or 0)
            self._begin_ns = due_ns if self._begin_ns is None else min(self._begin_ns, due_ns)
            if due_ns - self._begin_ns < self._length_ns:
                return True
        return int(row.get("phase") or 0) in self._phases

    def figures(self) -> WarmUpFigures | None:
        if not self._rule:
            return None
        return WarmUpFigures(
            phases=tuple(self._rule.get("phases") or ()), seconds=self._rule.get("seconds"), requests=self.left_out
        )
