"""Compare the answers to one prompt with a cold and a warm prefix cache."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.detectors.base import Finding
from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.cache_pairs import CachePairs
from loadchaos.core.ledger.rows import QuestionRow


class ColdWarmOracle(Oracle):
    """Compares the warm answer of each pair with the cold one."""

    name: ClassVar[str] = "cold_warm"
    detects: ClassVar[str] = "a prompt that gets another answer once its prefix is in the cache"
    false_alarms: ClassVar[str] = MARGIN_RULE
    asked_by: ClassVar[str] = "cold_warm"
    check: ClassVar[str] = "cold_and_warm"

    def __init__(self) -> None:
        super().__init__()
        self._pairs = CachePairs()

    def judge(self, row: QuestionRow) -> None:
        if row["role"] == "cold":
            self._pairs.keep(row)
            return
        cold = self._pairs.cold_of(row)
        if cold is None:
            return
        cached = row.get("cached_tokens")
        difference = self.margin.compare(cold, row)
        if difference is not None and self.proved(difference):
            shown = "the server does not report cached tokens" if cached is None else f"{cached} cached tokens"
            about = f"{shown}; {difference.describe()}"
            self._pairs.report(self, "cache_changes_answer", (cold, row), about)

    def conclude(self) -> list[Finding]:
        if not self._pairs.n:
            return []
        actual = f"{self._pairs.n} pairs ({self._pairs.hits_text()}), {self.wrong} differ, {self.ties} near ties"
        return self.checked("equal answers", actual)
