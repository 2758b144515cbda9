"""Read answers that are one JSON value with results: vectors or scores.

They have no text. A request of several texts gets one result for each of them; other numbers of results are wrong. Sans-I/O.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from loadchaos.core.body_hash import body_hash
from loadchaos.load.wire.answer_reader import AnswerReader, WrongShapeError, usage_of, whole_object

_EXCERPT = 200
_DIGITS = 6


class Results(AnswerReader):
    """Base of answers without text; a subclass reads one in `read_results`. The answer is complete when it has a result.
    `rules.answers` is the number of results that were asked for.
    """

    __slots__ = ()
    HAS_CHOICES = False

    FINISH = "a result"

    def set_digest(self, values: Sequence[Any]) -> None:
        """Set the `digest` of numbers that differ from those of other texts."""
        if values and not self.contradictions:
            self.digest = body_hash(repr([round(value, _DIGITS) for value in values]).encode())

    @abstractmethod
    def read_results(self, data: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        """Return the results in order. Raises WrongShapeError."""

    def _read_whole(self, data: object) -> None:
        data = whole_object(data)
        if isinstance(data.get("id"), str):
            self.answer_id = data["id"]
        self.usage = usage_of(data)
        results = self.read_results(data)
        asked = self.rules.answers
        if asked is not None and results and len(results) != asked:
            self.add_wrong(f"there are {len(results)} results for {asked} texts")
        self._check_indexes([result.get("index", n) for n, result in enumerate(results)])
        if results:
            self.finish[0] = "stop"
            self.has_text = self.has_answer = True

    def add_wrong(self, text: str, got: object = None) -> None:
        """Add a contradiction; the first one of an answer is kept."""
        if self.contradictions:
            return
        self.contradictions.append({"id": "result_wrong", "text": text})
        if got is not None:
            self.contradictions[0]["got"] = str(got)[:_EXCERPT]

    def check_number(self, value: object, what: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.add_wrong(f"{what} is no number", value)
        elif not math.isfinite(value):
            self.add_wrong(f"{what} is not finite", value)

    def _check_indexes(self, indexes: list[object]) -> None:
        if any(not isinstance(index, int) for index in indexes):
            raise WrongShapeError("a result's index is not a number")
        if sorted(indexes) != list(range(len(indexes))):  # type: ignore[type-var]  # they are all numbers
            self.add_wrong("the results do not have the indexes of the texts", indexes)
