"""Detect a server that gives different prompts the same answer, by the hashes of texts and vectors in the end rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import BeginRow, EndRow

_WINDOW = 50
_FEWEST = 16
_SHARE = 0.9
"""A model that begins each answer with the same phrase seldom gives so many whole answers alike."""


@dataclass
class _Answer:
    """The newest answer to a prompt."""

    hash: str
    request: str
    at_ns: int
    reported: bool = False


class EqualAnswers(Detector):
    """Folds begin and ok end rows by traffic. Requests with the same body count once."""

    slow: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._prompts: dict[str, str] = {}  # in flight: id -> hash of the body
        self._newest: defaultdict[str, dict[str, _Answer]] = defaultdict(dict)  # by traffic and hash of the body
        self._texts: dict[str, str] = {}  # begin of an answer that came again, by its hash

    def on_begin(self, row: BeginRow) -> None:
        if (body := row.get("hash")) is not None:
            self._prompts[str(row["id"])] = body

    def on_end(self, row: EndRow) -> None:
        request = str(row.get("id"))
        prompt, content = self._prompts.pop(request, None), row.get("content") or {}
        if prompt is None or row.get("outcome") != "ok":
            return
        if "begin" in content:
            self._texts[content.get("hash", "")] = content["begin"]
        traffic = str(row.get("traffic", ""))
        newest = self._newest[traffic]
        newest.pop(prompt, None)
        # An answer without a hash is like no other.
        answer = newest[prompt] = _Answer(content.get("hash", request), request, int(row["at_ns"]))
        if len(newest) > _WINDOW:
            del newest[next(iter(newest))]
        equal = [one for one in newest.values() if one.hash == answer.hash]
        if len(newest) < _FEWEST or len(equal) < _SHARE * len(newest):
            return
        share = f"{len(equal)} of the last {len(newest)} prompts got the same answer"
        for one in equal:
            if not one.reported:
                one.reported = True
                wrong = WrongAnswer(
                    "answers_equal", one.request, one.at_ns, "equal answers", share, got=self._texts.get(answer.hash, ""),
                    traffic=traffic, facts={"share": share},
                )  # fmt: skip
                self._pending.append(wrong_failure(wrong))
