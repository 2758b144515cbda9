"""Tell whether the answers were held to the rules of their requests: schemas, and the order to repeat a secret word."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.mechanisms import NotJudged
from loadchaos.core.ledger.rows import EndRow

_FEWEST = 5
_SHARE = 0.1
"""Fewer answers that were judged prove nothing of the others."""
_CHECKS = {
    "schemas": ("complete answers", "were held to their schema, the others were cut by their length"),
    "secret_words": (
        "answers that repeat their secret word", "repeat the secret word of their prompt, as they were ordered"
    ),
}  # fmt: skip
"""By check: its expectation, and the words for answers that were judged."""


class UnheldAnswers(Detector):
    """Folds end rows by traffic. With fewer than a tenth of its answers judged, a traffic leaves a check unknown. Answers
    that had no room to be judged are a note.
    """

    slow: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._asked, self._judged, self._no_room = (
            Counter[tuple[str, str]](),
            Counter[tuple[str, str]](),
            Counter[str](),
        )

    def on_end(self, row: EndRow) -> None:
        traffic, content = str(row.get("traffic", "")), row.get("content") or {}
        rule = content.get("rule")
        self._no_room[traffic] += rule == "no_room"
        states = {"schemas": {"checked": True, "cut": False}.get(rule or ""), "secret_words": content.get("quoted")}
        for check, judged in states.items():
            if judged is not None:
                self._asked[check, traffic] += 1
                self._judged[check, traffic] += judged

    def finish(self) -> list[Finding]:
        found: list[Finding] = [
            f"traffic {traffic}: {n:,} answers ended at their limit of tokens (output), which leaves no room for an answer "
            "that obeys its schema. They were not held to it."
            for traffic, n in sorted((+self._no_room).items())
        ]
        for check, (expected, what) in _CHECKS.items():
            told = [
                f"{traffic}: {self._judged[check, traffic]:,} of {n:,} answers {what}"
                for (name, traffic), n in sorted(self._asked.items())
                if name == check and n >= _FEWEST and self._judged[check, traffic] < _SHARE * n
            ]
            if told:
                found.append(NotJudged(check, expected, "; ".join(told)))
        return found
