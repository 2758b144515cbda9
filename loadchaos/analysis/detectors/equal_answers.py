"""Detect a server that gives different prompts the same answer, by the hashes of texts and vectors in the end rows."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import BeginRow, EndRow

_ID = "answers_equal"
_WINDOW = 50
_FEWEST = 16
_SHARE = 0.9
"""A model that begins each answer with the same phrase seldom gives so many whole answers alike."""


@dataclass
class _Newest:
    """Newest answers of one traffic, one for each prompt: hash of the prompt to (hash, request, time, reported)."""

    answers: OrderedDict[str, tuple[str, str, int]] = field(default_factory=OrderedDict)
    counts: Counter[str] = field(default_factory=Counter)
    begins: dict[str, str] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)

    def add(self, prompt: str, answer: str, request: str, at_ns: int) -> None:
        if (before := self.answers.pop(prompt, None)) is not None:
            self._forget(before)
        self.answers[prompt] = answer, request, at_ns
        self.counts[answer] += 1
        if len(self.answers) > _WINDOW:
            self._forget(self.answers.popitem(last=False)[1])

    def _forget(self, one: tuple[str, str, int]) -> None:
        answer, request, _ = one
        self.reported.discard(request)
        self.counts[answer] -= 1
        if not self.counts[answer]:
            del self.counts[answer]
            self.begins.pop(answer, None)


class EqualAnswers(Detector):
    """Folds begin and ok end rows by traffic. Requests with the same body count once."""

    slow: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._prompts: dict[str, str] = {}  # in flight: id -> hash of the body
        self._traffics: defaultdict[str, _Newest] = defaultdict(_Newest)

    def on_begin(self, row: BeginRow) -> None:
        if (body := row.get("hash")) is not None:
            self._prompts[str(row["id"])] = body

    def on_end(self, row: EndRow) -> None:
        request = str(row.get("id"))
        prompt, content = self._prompts.pop(request, None), row.get("content") or {}
        answer = content.get("hash")
        if prompt is None or row.get("outcome") != "ok":
            return
        name = str(row.get("traffic", ""))
        newest = self._traffics[name]
        newest.add(prompt, answer or request, request, int(row["at_ns"]))  # one without a hash is like no other
        if answer is None:
            return
        if begin := content.get("begin"):
            newest.begins.setdefault(answer, begin)
        n, total = newest.counts[answer], len(newest.answers)
        if total >= _FEWEST and n >= _SHARE * total:
            self._report(name, newest, answer, f"{n} of the last {total} prompts got the same answer")

    def _report(self, traffic: str, newest: _Newest, answer: str, share: str) -> None:
        """Report each of the equal answers once."""
        for other, request, at_ns in newest.answers.values():
            if other == answer and request not in newest.reported:
                newest.reported.add(request)
                wrong = WrongAnswer(
                    _ID, request, at_ns, "equal answers", share, got=newest.begins.get(answer, ""), traffic=traffic,
                    facts={"share": share},
                )  # fmt: skip
                self._pending.append(wrong_failure(wrong))
