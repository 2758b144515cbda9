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


class UnheldAnswers(Detector):
    """Folds end rows by traffic. With fewer than a tenth of its answers judged, a traffic leaves a check unknown."""

    slow: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._ruled, self._checked = Counter[str](), Counter[str]()
        self._ordered, self._quoted = Counter[str](), Counter[str]()

    def on_end(self, row: EndRow) -> None:
        traffic, content = str(row.get("traffic", "")), row.get("content") or {}
        if (rule := content.get("rule")) is not None:
            self._ruled[traffic] += 1
            self._checked[traffic] += rule == "checked"
        if (quoted := content.get("quoted")) is not None:
            self._ordered[traffic] += 1
            self._quoted[traffic] += quoted

    def finish(self) -> list[Finding]:
        found: list[Finding] = []
        if told := _few(self._checked, self._ruled, "were held to their schema, the others were cut by their length"):
            found.append(NotJudged("schemas", "complete answers", told))
        if told := _few(self._quoted, self._ordered, "repeat the secret word of their prompt, as they were ordered"):
            found.append(NotJudged("secret_words", "answers that repeat their secret word", told))
        return found


def _few(judged: Counter[str], of: Counter[str], what: str) -> str:
    few = [t for t, n in sorted(of.items()) if n >= _FEWEST and judged[t] < _SHARE * n]
    return "; ".join(f"{traffic}: {judged[traffic]:,} of {of[traffic]:,} answers {what}" for traffic in few)
