"""Pair each answer from the prefix cache with the cold answer before it."""

from __future__ import annotations

from collections import OrderedDict

from loadchaos.analysis.oracles.base import Oracle
from loadchaos.analysis.oracles.margin import wrong_and_right
from loadchaos.core.ledger.rows import QuestionRow

_MOST_OPEN = 16


class CachePairs:
    """Cold answers by their group, and the pairs that were made of them. `cached_tokens` of the server proves that a
    later answer used the cache.
    """

    def __init__(self) -> None:
        self.n = 0
        self._cold: OrderedDict[int, QuestionRow] = OrderedDict()
        self._cold_reported: set[int] = set()
        self._hits = self._known = 0

    def keep(self, cold: QuestionRow) -> None:
        self._cold[cold["group"]] = cold
        if len(self._cold) > _MOST_OPEN:
            self._cold.popitem(last=False)

    def cold_of(self, row: QuestionRow) -> QuestionRow | None:
        cold = self._cold.get(row["group"])
        if cold is not None:
            cached = row.get("cached_tokens")
            self.n += 1
            self._known += cached is not None
            self._hits += (cached or 0) > (cold.get("cached_tokens") or 0)
        return cold

    def report(self, oracle: Oracle, failure_id: str, pair: tuple[QuestionRow, QuestionRow], about: str) -> None:
        """Report a pair that differs. A cold answer that is known to be wrong beside a right later one says nothing
        about the cache: it is a wrong answer to its question, and reported once.
        """
        wrong, right = wrong_and_right(*pair)
        if wrong is pair[1]:
            oracle.report(failure_id, wrong, right["text"], about)
        elif wrong["n"] not in self._cold_reported:
            self._cold_reported.add(wrong["n"])
            oracle.report("wrong_answer", wrong, right["text"], f"the same prompt was answered right later; {about}")

    def hits_text(self) -> str:
        return f"{self._hits} proved to be cache hits" if self._known else "the server does not report cached tokens"
