"""Detect answers without text, with less text than their tokens, and with a text that is no answer to any prompt."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import EndRow

_FEWEST = 3
_FAIL_SHARE = 0.2
_UNKNOWN_SHARE = 0.05
"""A model may answer with special tokens only, and a parser may keep the start of a tool call that never ends."""
_EXTRA_SHARE = 0.001
_MOST_SIZES = 5_000
_MIN_TOKENS = 2  # one token is the end of the sequence, which has no text
_ALL_SHARE = 0.9
"""So many answers without text are a failure, whatever the server counted."""
_COPIES_SHARE = 0.5
_SILENT = "no_text"
_FEWEST_TOKENS, _FEWEST_SIZES = 16, 10
"""An answer of fewer tokens has a length of text by chance."""
_USUAL, _USUAL_SHARE, _HALF = 0.2, 0.6, 0.65
"""Limits of bytes a token: if 60 % of the answers are within 20 % of the median, one below 65 % of it may lack tokens."""
_ODD = {
    _SILENT: ("answers_without_text", "hold no text", _FAIL_SHARE),
    "special_tokens": ("answers_of_special_tokens", "hold special tokens of the model and nothing else", _FAIL_SHARE),
    "control_characters": ("answers_of_control_characters", "hold control characters or blanks only", _FAIL_SHARE),
    "copies_prompt": ("answers_copy_prompt", "are a copy of their prompt", _COPIES_SHARE),
}
"""Odd texts: the failure of each, its words, and the share of a traffic from which it is one."""


class AnswerTextDetector(Detector):
    """Folds ok end rows by traffic. Many answers without text, or with an odd one, are a failure. Some of them, answers
    with less text than tokens can make, and answers with more chunks than tokens leave unknown what was measured.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answers: Counter[str] = Counter()
        self._odd: dict[str, Counter[str]] = {kind: Counter() for kind in _ODD}  # silent: several tokens counted
        self._first: dict[tuple[str, str], tuple[str, int, str]] = {}  # (kind, traffic): request, time, text
        self._empty: Counter[str] = Counter()  # no text, whatever was counted
        self._thin: Counter[str] = Counter()
        self._extra: Counter[str] = Counter()
        self._sizes: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST_SIZES))  # bytes a token

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") != "ok":
            return
        traffic, detail = str(row.get("traffic", "")), row.get("detail") or {}
        self._answers[traffic] += 1
        if detail.get("no_text"):
            self._empty[traffic] += 1
            self._add(_SILENT, row, "", counted=int(row.get("completion_tokens") or 0) >= _MIN_TOKENS)
        content = row.get("content") or {}
        if (odd := content.get("odd")) is not None:
            self._add(odd, row, content.get("begin", ""))
        self._thin[traffic] += "thin_text" in detail
        self._extra[traffic] += "extra_chunks" in detail
        if (tokens := int(detail.get("text_tokens") or 0)) >= _FEWEST_TOKENS:
            self._sizes[traffic].append(detail["text_bytes"] / tokens)

    def _add(self, kind: str, row: EndRow, text: str, *, counted: bool = True) -> None:
        traffic = str(row.get("traffic", ""))
        self._odd[kind][traffic] += counted
        self._first.setdefault((kind, traffic), (str(row.get("id")), int(row["at_ns"]), text))

    def finish(self) -> list[Finding]:
        found, failed = list[Finding](), set[str]()
        for kind, (_, _, share) in _ODD.items():
            odd = {t: n for t, n in sorted(self._odd[kind].items()) if self._is_many(n, t, share)}
            if kind == _SILENT:
                odd |= {t: n for t, n in sorted(self._empty.items()) if self._is_many(n, t, _ALL_SHARE)}
            failed |= odd.keys()
            if odd:
                found.append(self._failure(kind, odd))
        lacking = self._odd[_SILENT] + self._thin
        short = [t for t in self._answers if t not in failed and self._is_many(lacking[t], t, _UNKNOWN_SHARE)]
        short += [t for t in self._answers if t not in (*failed, *short) and self._is_many(self._empty[t], t, 0.5)]
        if short:
            texts = "; ".join(self._lacking_text(traffic) for traffic in sorted(short))
            found.append(CheckResult("answer_text", "text for the counted tokens", texts, "unknown"))
        if halves := [text for traffic, sizes in sorted(self._sizes.items()) if (text := _halves(traffic, sizes))]:
            found.append(
                CheckResult("answer_sizes", "as much text a token as other answers", "; ".join(halves), "unknown")
            )
        extra, answers = self._extra.total(), self._answers.total()
        if extra and extra >= _EXTRA_SHARE * answers:
            actual = (
                f"{extra:,} of {answers:,} answers have more chunks with text than completion tokens in their usage"
            )
            found.append(CheckResult("answer_chunks", "at most one chunk a token", actual, "unknown"))
        return found

    def _is_many(self, n: int, traffic: str, share: float) -> bool:
        return n >= _FEWEST and n >= share * self._answers[traffic]

    def _lacking_text(self, traffic: str) -> str:
        empty, thin = self._empty[traffic], self._thin[traffic]
        parts = [f"{empty:,} without text"] if empty else []
        parts += [f"{thin:,} with fewer bytes of text than tokens"] if thin else []
        return f"{traffic}: {' and '.join(parts)} of {self._answers[traffic]:,} answers"

    def _failure(self, kind: str, odd: dict[str, int]) -> Failure:
        """The failure of a kind, with the numbers of its answers by traffic."""
        name, what, _ = _ODD[kind]
        told = [f"{n:,} of {self._answers[t]:,} answers of traffic {t}" for t, n in odd.items()]
        text = f"{' and '.join(told)} {what}"
        if kind == _SILENT and all(self._odd[kind][t] >= _FAIL_SHARE * self._answers[t] for t in odd):
            text += ", though the server counts their tokens"
        traffic = next(iter(odd))
        request, at_ns, begin = self._first[kind, traffic]
        wrong = WrongAnswer(name, request, at_ns, "answer text", text, got=begin, traffic=traffic)
        return replace(wrong_failure(wrong), title=text, in_log=sum(odd.values()))


def _halves(traffic: str, sizes: Sequence[float]) -> str:
    """Describe the answers with about half of the text that others make of as many tokens; empty without. A model that
    goes on behind its end (`ignore_eos`), hidden reasoning and text of another language do the same, so that this proves
    no fault.
    """
    usual = median(sizes)
    near = sum(abs(size - usual) <= _USUAL * usual for size in sizes)
    few = sum(size < _HALF * usual for size in sizes)
    if len(sizes) < _FEWEST_SIZES or near < _USUAL_SHARE * len(sizes):
        return ""
    if few < max(_FEWEST, _UNKNOWN_SHARE * len(sizes)):
        return ""
    beside = f"less than {_HALF:.0%} of the {usual:.1f} bytes a token of the others"
    return f"{traffic}: {few:,} of {len(sizes):,} answers have {beside}"
