"""Compare answers to prompts of exact lengths, cold and cached."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.oracles.cache_pairs import CachePairsOracle
from loadchaos.core.ledger.rows import QuestionRow


class PrefixLadderOracle(CachePairsOracle):
    """Compares later answers to a prompt with its first one. A prompt whose usage shows another length than planned is
    compared as well, and counted.
    """

    name: ClassVar[str] = "prefix_ladder"
    detects: ClassVar[str] = "a prompt that ends at the edge of a KV block and gets another answer from the cache"
    asked_by: ClassVar[str] = "prefix_ladder"
    check: ClassVar[str] = "exact_prompts"
    failure_ids: ClassVar[dict[str, str]] = {"warm": "cache_changes_answer", "after_aborts": "aborts_change_answer"}

    def __init__(self) -> None:
        super().__init__()
        self._lengths: set[str] = set()
        self._other_length = 0

    def judge(self, row: QuestionRow) -> None:
        if row["when"] == "idle":
            return
        before = self.answers
        super().judge(row)
        if self.answers > before:
            self._lengths.add(row["kind"])
            self._other_length += f"{row.get('prompt_tokens')} tokens" != row["kind"]

    def about(self, row: QuestionRow) -> str:
        return f"a prompt of {row.get('prompt_tokens')} tokens"

    def compared(self) -> str:
        return f"{self.answers} pairs at {len(self._lengths)} lengths ({self.hits_text()})"

    def beside(self) -> str:
        return f", {self._other_length} with another length than planned" if self._other_length else ""

    def is_blind(self) -> bool:
        return self._other_length == self.answers
