"""Base of the oracles that compare an answer from the prefix cache with the cold answer to the same prompt."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.margin import wrong_and_right
from loadchaos.core.ledger.rows import QuestionRow

_MOST_OPEN = 16


class CachePairsOracle(Oracle):
    """Pairs each later answer of a group with its cold one. `cached_tokens` of the server proves that the later answer
    used the cache.

    Attributes:
        failure_ids: failure of a later answer that differs, by its role.
    """

    false_alarms: ClassVar[str] = MARGIN_RULE
    failure_ids: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        super().__init__()
        self._cold: OrderedDict[int, QuestionRow] = OrderedDict()
        self._cold_reported: set[int] = set()
        self._hits = self._known = 0

    def about(self, row: QuestionRow) -> str:
        """Describe a later answer."""
        raise NotImplementedError

    def judge(self, row: QuestionRow) -> None:
        if row["role"] == "cold":
            self._cold[row["group"]] = row
            if len(self._cold) > _MOST_OPEN:
                self._cold.popitem(last=False)
        elif (cold := self._cold.get(row["group"])) is not None and row["role"] in self.failure_ids:
            cached = row.get("cached_tokens")
            self.answers += 1
            self._known += cached is not None
            self._hits += (cached or 0) > (cold.get("cached_tokens") or 0)
            difference = self.margin.compare(cold, row)
            if difference is not None and self.proved(difference):
                self._report_pair(cold, row, f"{self.about(row)}; {difference.describe()}")

    def _report_pair(self, cold: QuestionRow, row: QuestionRow, about: str) -> None:
        """Report a pair that differs. A cold answer that is known to be wrong beside a right later one says nothing
        about the cache: it is a wrong answer to its question, and reported once.
        """
        wrong, right = wrong_and_right(cold, row)
        if wrong is row:
            self.report(self.failure_ids[row["role"]], wrong, right["text"], about)
        elif wrong["n"] not in self._cold_reported:
            self._cold_reported.add(wrong["n"])
            self.report("wrong_answer", wrong, right["text"], f"the same prompt was answered right later; {about}")

    def hits_text(self) -> str:
        return f"{self._hits} proved to be cache hits" if self._known else "the server does not report cached tokens"
