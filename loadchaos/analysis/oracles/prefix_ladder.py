"""Compare answers to prompts of exact lengths, cold and cached."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.detectors.base import Finding
from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.cache_pairs import CachePairs
from loadchaos.core.ledger.rows import QuestionRow

_IDS = {"warm": "cache_changes_answer", "after_aborts": "aborts_change_answer"}


class PrefixLadderOracle(Oracle):
    """Compares later answers to a prompt with its first one. A prompt whose usage shows another length than planned is
    compared as well, and counted.
    """

    name: ClassVar[str] = "prefix_ladder"
    detects: ClassVar[str] = "a prompt that ends at the edge of a KV block and gets another answer from the cache"
    false_alarms: ClassVar[str] = MARGIN_RULE
    asked_by: ClassVar[str] = "prefix_ladder"
    check: ClassVar[str] = "exact_prompts"

    def __init__(self) -> None:
        super().__init__()
        self._pairs = CachePairs()
        self._lengths: set[str] = set()
        self.ties = self._other_length = 0

    def judge(self, row: QuestionRow) -> None:
        if row["when"] == "idle":
            return
        if row["role"] == "cold":
            self._pairs.keep(row)
            return
        cold = self._pairs.cold_of(row) if row["role"] in _IDS else None
        if cold is None:
            return
        self._lengths.add(row["kind"])
        self._other_length += f"{row.get('prompt_tokens')} tokens" != row["kind"]
        difference = self.margin.compare(cold, row)
        if difference is not None and self.proved(difference):
            about = f"a prompt of {row.get('prompt_tokens')} tokens; {difference.describe()}"
            self._pairs.report(self, _IDS[row["role"]], (cold, row), about)

    def conclude(self) -> list[Finding]:
        if not self._pairs.n:
            return []
        actual = (
            f"{self._pairs.n} pairs at {len(self._lengths)} lengths ({self._pairs.hits_text()}), {self.wrong} differ, "
        )
        actual += f"{self.ties} near ties"
        actual += f", {self._other_length} with another length than planned" if self._other_length else ""
        return self.checked("equal answers", actual, blind=self._other_length == self._pairs.n)
