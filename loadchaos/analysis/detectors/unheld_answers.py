"""Tell whether the answers were held to the rules of their requests: schemas, and the order to repeat a secret word."""

from __future__ import annotations

from collections import Counter, defaultdict

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.verdict.model import NotJudged
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

    def __init__(self) -> None:
        super().__init__()
        self._states: defaultdict[tuple[str, str], Counter[str | bool]] = defaultdict(Counter)  # by check and traffic

    def on_end(self, row: EndRow) -> None:
        traffic, content = str(row.get("traffic", "")), row.get("content") or {}
        for check, state in (("schemas", content.get("rule")), ("secret_words", content.get("quoted"))):
            if state is not None:
                self._states[check, traffic][state] += 1

    def finish(self) -> list[Finding]:
        found, told = list[Finding](), defaultdict[str, list[str]](list)
        for (check, traffic), states in sorted(self._states.items()):
            judged = states["checked"] + states[True]
            asked = judged + states["cut"] + states[False]
            if asked >= _FEWEST and judged < _SHARE * asked:
                told[check].append(f"{traffic}: {judged:,} of {asked:,} answers {_CHECKS[check][1]}")
            if no_room := states["no_room"]:
                found.append(
                    f"traffic {traffic}: {no_room:,} answers ended at their limit of tokens (output), which leaves no room "
                    "for an answer that obeys its schema. They were not held to it."
                )
        return [*found, *(NotJudged(check, _CHECKS[check][0], "; ".join(texts)) for check, texts in told.items())]
