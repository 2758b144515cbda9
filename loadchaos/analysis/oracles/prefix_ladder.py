"""Compare answers to prompts of exact lengths, cold and cached."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.detectors.base import Finding
from loadchaos.analysis.mechanisms import Check
from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.cache_pairs import CachePairs
from loadchaos.analysis.oracles.margin import answered
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
        self._ties = self._other_length = 0

    def judge(self, row: QuestionRow) -> None:
        if row.get("part") != self.asked_by or row["when"] == "idle" or not answered(row):
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
        if difference is None:
            return
        if difference.proved:
            about = f"a prompt of {row.get('prompt_tokens')} tokens; token {difference.at}, {difference.describe()}"
            self._pairs.report(self, _IDS[row["role"]], (cold, row), about)
        elif difference.gap is None:
            self.doubtful += 1
        else:
            self._ties += 1

    def conclude(self) -> list[Finding]:
        if not self._pairs.n:
            return []
        actual = (
            f"{self._pairs.n} pairs at {len(self._lengths)} lengths ({self._pairs.hits_text()}), {self.wrong} differ, "
        )
        actual += f"{self._ties} near ties"
        actual += f", {self._other_length} with another length than planned" if self._other_length else ""
        actual += f", {self.doubtful} differ without logprobs" if self.doubtful else ""
        blind = self.doubtful or self._other_length == self._pairs.n
        return [Check("exact_prompts", "equal answers", actual, "unknown" if blind else "pass")]
