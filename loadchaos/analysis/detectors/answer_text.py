"""Detect answers with less text than the tokens that the server counted."""

from __future__ import annotations

from collections import Counter

from loadchaos.analysis.detectors.base import Detector, Finding, from_figures
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.mechanisms import Check
from loadchaos.core.ledger.rows import EndRow

_FEWEST = 3
_FAIL_SHARE = 0.2
_UNKNOWN_SHARE = 0.05
"""A model may answer with special tokens only, and a parser may keep the start of a tool call that never ends."""
_EXTRA_SHARE = 0.001
_MIN_TOKENS = 2  # one token is the end of the sequence, which has no text
REMEDY = (
    "Look at one answer with curl. Check the detokenizer, the reasoning parser and what a gateway removes. "
    "If it hides reasoning on purpose, accept this id in the profile."
)


class AnswerTextDetector(Detector):
    """Folds ok end rows by traffic. Many answers without text are a failure. Some of them, answers with less text than
    tokens can make, and answers with more chunks than tokens leave unknown what was measured.
    """

    slow = False

    def __init__(self) -> None:
        super().__init__()
        self._answers: Counter[str] = Counter()
        self._silent: Counter[str] = Counter()  # no text, and several tokens counted
        self._empty: Counter[str] = Counter()  # no text, whatever was counted
        self._thin: Counter[str] = Counter()
        self._extra: Counter[str] = Counter()

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") != "ok":
            return
        traffic, detail = str(row.get("traffic", "")), row.get("detail") or {}
        self._answers[traffic] += 1
        if detail.get("no_text"):
            self._empty[traffic] += 1
            self._silent[traffic] += int(row.get("completion_tokens") or 0) >= _MIN_TOKENS
        self._thin[traffic] += "thin_text" in detail
        self._extra[traffic] += "extra_chunks" in detail

    def finish(self) -> list[Finding]:
        failed = [t for t in self._answers if self._is_many(self._silent[t], t, _FAIL_SHARE)]
        found: list[Finding] = [self._failure(traffic) for traffic in sorted(failed)]
        lacking = self._silent + self._thin
        short = [t for t in self._answers if t not in failed and self._is_many(lacking[t], t, _UNKNOWN_SHARE)]
        short += [t for t in self._answers if t not in failed + short and self._is_many(self._empty[t], t, 0.5)]
        if short:
            texts = "; ".join(self._lacking_text(traffic) for traffic in sorted(short))
            found.append(Check("answer_text", "text for the counted tokens", texts, "unknown"))
        extra, answers = self._extra.total(), self._answers.total()
        if extra and extra >= _EXTRA_SHARE * answers:
            actual = (
                f"{extra:,} of {answers:,} answers have more chunks with text than completion tokens in their usage"
            )
            found.append(Check("answer_chunks", "at most one chunk a token", actual, "unknown"))
        return found

    def _is_many(self, n: int, traffic: str, share: float) -> bool:
        return n >= _FEWEST and n >= share * self._answers[traffic]

    def _lacking_text(self, traffic: str) -> str:
        empty, thin = self._empty[traffic], self._thin[traffic]
        parts = [f"{empty:,} without text"] if empty else []
        parts += [f"{thin:,} with fewer bytes of text than tokens"] if thin else []
        return f"{traffic}: {' and '.join(parts)} of {self._answers[traffic]:,} answers"

    def _failure(self, traffic: str) -> Failure:
        n, all_ = self._silent[traffic], self._answers[traffic]
        title = f"{n:,} of {all_:,} answers of traffic {traffic} hold no text, though the server counts their tokens"
        return from_figures("answers_without_text", "request", title, REMEDY, 0, None)
