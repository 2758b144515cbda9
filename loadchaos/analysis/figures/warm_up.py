"""Warm-up of a load: requests that are left out of its figures.

Their outcomes count: a failure during the warm-up is a failure of the run.
"""

from __future__ import annotations

from dataclasses import replace

from loadchaos.analysis.verdict.model import WarmUpFigures
from loadchaos.core.ledger.rows import BeginRow, ConversationRow, EndRow, MissedRow
from loadchaos.core.typed_json import from_json
from loadchaos.core.units import NS_PER_S


class WarmUp:
    """Tells which requests belong to the warm-up. They are those of some phases, and those due in the first `seconds`
    of the load.
    """

    def __init__(self, rule: object = None) -> None:
        """Take the rule of `Terms.warm_up`; without one nothing is left out."""
        self._rule = from_json(WarmUpFigures, rule) if rule else None
        self._length_ns = round(((self._rule and self._rule.seconds) or 0.0) * NS_PER_S)
        self._begin_ns: int | None = None
        self.left_out = 0

    def covers(self, row: BeginRow | ConversationRow | EndRow | MissedRow) -> bool:
        if self._rule is None:
            return False
        if self._length_ns:
            due_ns = row["at_ns"] if row["row"] == "missed" else row.get("due_ns") or row["at_ns"]
            self._begin_ns = due_ns if self._begin_ns is None else min(self._begin_ns, due_ns)
            if due_ns - self._begin_ns < self._length_ns:
                return True
        return (row.get("phase") or 0) in self._rule.phases

    def figures(self) -> WarmUpFigures | None:
        return None if self._rule is None else replace(self._rule, requests=self.left_out)
