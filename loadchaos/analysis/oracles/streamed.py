"""Compare the streamed and the whole answer to one prompt."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from loadchaos.analysis.detectors.base import Finding
from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.margin import BROKEN, wrong_and_right
from loadchaos.analysis.verdict.model import NotJudged
from loadchaos.core.ledger.rows import QuestionRow

_ID = "stream_differs"
_MOST_OPEN = 16


class StreamedOracle(Oracle):
    """Compares each pair, and the text of each answer with its own tokens. Pairs of the idle server that differ turn it
    off: some parsers treat streams otherwise on purpose.
    """

    name: ClassVar[str] = "streamed"
    detects: ClassVar[str] = "a stream that loses, repeats or changes tokens"
    false_alarms: ClassVar[str] = f"{MARGIN_RULE}; it is off where pairs on the idle server differ"
    asked_by: ClassVar[str] = "streamed"
    check: ClassVar[str] = "streamed_and_whole"

    def __init__(self) -> None:
        super().__init__()
        self._open: OrderedDict[int, QuestionRow] = OrderedDict()
        self._off = False

    def judge(self, row: QuestionRow) -> None:
        other = self._open.pop(row["group"], None)
        if other is None:
            self._open[row["group"]] = row
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            return
        streamed, whole = (row, other) if row["role"] == "streamed" else (other, row)
        difference = self.margin.compare(whole, streamed)
        if row["when"] == "idle":
            self._off |= difference is not None or _lost(streamed) != _lost(whole)
            return
        self.answers += 1
        if self._off:
            return
        wrong, right = wrong_and_right(whole, streamed)
        if _lost(wrong) and not _lost(right):
            self.report(_ID, wrong, "".join(wrong["tokens"]), "its text is not that of its own tokens")
        elif difference is not None and self.proved(difference):
            self.report(_ID, wrong, right["text"], difference.describe())

    def conclude(self) -> list[Finding]:
        if self._off:
            why = f"{self.answers} pairs were not compared: those of the idle server differ already"
            return [NotJudged(self.check, self.expected, why)]
        return super().conclude()

    def compared(self) -> str:
        return f"{self.answers} pairs"


def _lost(row: QuestionRow) -> bool:
    text = "".join(row.get("tokens", ()))
    return bool(text) and BROKEN not in text + row["text"] and text.strip() != row["text"].strip()
