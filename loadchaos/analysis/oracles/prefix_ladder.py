"""Compare answers to prompts of exact lengths, cold and cached."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from loadchaos.analysis.detectors.base import Finding
from loadchaos.analysis.mechanisms import Check
from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.margin import answered
from loadchaos.core.ledger.rows import QuestionRow

_MOST_OPEN = 16
_IDS = {"warm": "cache_changes_answer", "after_aborts": "aborts_change_answer"}


class PrefixLadderOracle(Oracle):
    """Compares later answers to a prompt with its first one.

    A prompt whose usage shows another length than planned is compared as well, and counted.
    """

    name: ClassVar[str] = "prefix_ladder"
    detects: ClassVar[str] = "a prompt that ends at the edge of a KV block and gets another answer from the cache"
    false_alarms: ClassVar[str] = MARGIN_RULE
    asked_by: ClassVar[str] = "prefix_ladder"
    check: ClassVar[str] = "exact_prompts"

    def __init__(self) -> None:
        super().__init__()
        self._cold: OrderedDict[int, QuestionRow] = OrderedDict()
        self._lengths: set[str] = set()
        self._pairs = self._hits = self._known = self._ties = self._other_length = 0

    def judge(self, row: QuestionRow) -> None:
        """Keep a cold answer; compare a later one with it."""
        if row.get("part") != self.asked_by or row["when"] == "idle" or not answered(row):
            return
        if row["role"] == "cold":
            self._cold[row["group"]] = row
            if len(self._cold) > _MOST_OPEN:
                self._cold.popitem(last=False)
            return
        cold = self._cold.get(row["group"])
        if cold is None or row["role"] not in _IDS:
            return
        self._pairs += 1
        self._lengths.add(row["kind"])
        self._other_length += f"{row.get('prompt_tokens')} tokens" != row["kind"]
        cached = row.get("cached_tokens")
        self._known += cached is not None
        self._hits += (cached or 0) > (cold.get("cached_tokens") or 0)
        difference = self.margin.compare(cold, row)
        if difference is None:
            return
        if difference.proved:
            about = f"a prompt of {row.get('prompt_tokens')} tokens; token {difference.at}, {difference.describe()}"
            self.report(_IDS[row["role"]], row, cold["text"], about)
        elif difference.gap is None:
            self.doubtful += 1
        else:
            self._ties += 1

    def conclude(self) -> list[Finding]:
        """A check with the number of pairs, lengths and proved hits."""
        if not self._pairs:
            return []
        hits = f"{self._hits} proved to be cache hits" if self._known else "the server does not report cached tokens"
        actual = f"{self._pairs} pairs at {len(self._lengths)} lengths ({hits}), {self.wrong} differ, "
        actual += f"{self._ties} near ties"
        actual += f", {self._other_length} with another length than planned" if self._other_length else ""
        actual += f", {self.doubtful} differ without logprobs" if self.doubtful else ""
        blind = self.doubtful or self._other_length == self._pairs
        return [Check("exact_prompts", "equal answers", actual, "unknown" if blind else "pass")]
