"""Pair each answer from the prefix cache with the cold answer before it."""

from __future__ import annotations

from collections import OrderedDict

from loadchaos.core.ledger.rows import QuestionRow

_MOST_OPEN = 16


class CachePairs:
    """Cold answers by their group, and the pairs that were made of them.

    `cached_tokens` of the server proves that a later answer used the cache.
    """

    def __init__(self) -> None:
        self.n = 0
        self._cold: OrderedDict[int, QuestionRow] = OrderedDict()
        self._hits = self._known = 0

    def keep(self, cold: QuestionRow) -> None:
        """Keep a cold answer; the oldest one is dropped."""
        self._cold[cold["group"]] = cold
        if len(self._cold) > _MOST_OPEN:
            self._cold.popitem(last=False)

    def cold_of(self, row: QuestionRow) -> QuestionRow | None:
        """Give the cold answer of a later one and count the pair."""
        cold = self._cold.get(row["group"])
        if cold is not None:
            cached = row.get("cached_tokens")
            self.n += 1
            self._known += cached is not None
            self._hits += (cached or 0) > (cold.get("cached_tokens") or 0)
        return cold

    def hits_text(self) -> str:
        """Number of proved cache hits in words."""
        return f"{self._hits} proved to be cache hits" if self._known else "the server does not report cached tokens"
