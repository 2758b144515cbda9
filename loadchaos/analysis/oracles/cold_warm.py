"""Compare the answers to one prompt with a cold and a warm prefix cache."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.oracles.cache_pairs import CachePairsOracle
from loadchaos.core.ledger.rows import QuestionRow


class ColdWarmOracle(CachePairsOracle):
    """Compares the warm answer of each pair with the cold one."""

    name: ClassVar[str] = "cold_warm"
    detects: ClassVar[str] = "a prompt that gets another answer once its prefix is in the cache"
    asked_by: ClassVar[str] = "cold_warm"
    check: ClassVar[str] = "cold_and_warm"
    failure_ids: ClassVar[dict[str, str]] = {"warm": "cache_changes_answer"}

    def about(self, row: QuestionRow) -> str:
        cached = row.get("cached_tokens")
        return "the server does not report cached tokens" if cached is None else f"{cached} cached tokens"

    def compared(self) -> str:
        return f"{self.answers} pairs ({self.hits_text()})"
