"""Compare answers under load with those of the idle server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from loadchaos.analysis.detectors.base import Finding
from loadchaos.analysis.detectors.canary import learn
from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.margin import NEAR_TIE, answered
from loadchaos.analysis.verdict.model import CheckResult, NotJudged
from loadchaos.core.ledger.rows import QuestionRow
from loadchaos.core.probe_names import LEARNED_UNDER_LOAD

_ID = "answer_changed_under_load"


@dataclass(frozen=True)
class _Unconfirmed:
    row: QuestionRow
    expected: str
    about: str


class AloneVsLoadOracle(Oracle):
    """Compares the answer under load with the idle one by the logprob margin. Without logprobs, by the text that all
    answers before the load and the first ones under it begin with.
    """

    name: ClassVar[str] = "alone_vs_load"
    detects: ClassVar[str] = "a prompt that gets another answer under load than alone"
    false_alarms: ClassVar[str] = (
        f"{MARGIN_RULE}; where an earlier run on the server has asked the prompt, the idle server has to differ after the "
        "load, too"
    )
    asked_by: ClassVar[str] = "alone_vs_load"
    check: ClassVar[str] = "alone_vs_load"
    expected: ClassVar[str] = "answers as when idle"

    def __init__(self) -> None:
        super().__init__()
        self._busy: list[QuestionRow] = []
        self._loaded: dict[str, list[str]] = {}
        self._compared = self._withdrawn = 0
        self._unconfirmed: list[_Unconfirmed] = []

    def takes(self, row: QuestionRow) -> bool:
        return row.get("part") == "reference" or row.get("when") == "load"

    def judge(self, row: QuestionRow) -> None:
        if row.get("when") in ("busy", "after"):
            if row["when"] == "after":
                self._confirm(row)
            elif not row.get("remembered"):  # else the run that asked has judged it
                self._busy.append(row)
            return
        if row.get("when") == "load" and self._busy:
            benign, self._busy = self._busy, []
            for busy in benign:
                self._judge_benign(busy)
        idle = self.margin.reference(row) if row.get("part") == "reference" and row.get("when") == "load" else None
        if idle is None or not answered(row):
            return
        self.answers += 1
        difference = self.margin.compare(idle, row)
        if idle.get("tokens") and row.get("tokens") and self.margin.limit is not None:
            self._compared += 1
            if difference is None:
                return
            if difference.proved:
                about = difference.describe()
                self._found(row, idle, idle["text"], about)
            else:
                self.ties += 1
            return
        first = self._loaded.setdefault(row["hash"], [])
        if len(first) < LEARNED_UNDER_LOAD:
            first.append(row["text"])
            return
        tolerated = learn([*self.margin.texts(row), *first])
        self._compared += tolerated is not None
        if tolerated is not None and not tolerated.admits(row["text"]):
            n = len(self.margin.texts(row)) + len(first)
            self._found(row, idle, tolerated.text, f"{n} earlier answers begin with it")

    def _found(self, row: QuestionRow, idle: QuestionRow, expected: str, about: str) -> None:
        if idle.get("remembered"):
            self._unconfirmed.append(_Unconfirmed(row, expected, about))
        else:
            self.report(_ID, row, expected, about)

    def _confirm(self, now: QuestionRow) -> None:
        kept, self._unconfirmed = self._unconfirmed, []
        for one in kept:
            if (one.row["model"], one.row["hash"]) != (now["model"], now["hash"]):
                self._unconfirmed.append(one)
                continue
            difference = self.margin.compare(now, one.row) if answered(now) else None
            if difference is not None and (difference.proved or difference.gap is None):
                self.report(_ID, one.row, one.expected, f"{one.about}; the idle server differs after the load, too")
            else:
                self._withdrawn += 1

    def _judge_benign(self, row: QuestionRow) -> None:
        """Judge an answer from before the load: only a clear preference counts."""
        idle = self.margin.reference(row)
        difference = self.margin.compare(idle, row) if idle is not None and answered(row) else None
        if difference is not None and difference.proved and (difference.gap or 0.0) > NEAR_TIE:
            about = f"before the load, with some requests at once; {difference.describe()}"
            self.report(_ID, row, idle["text"] if idle is not None else "", about)

    def conclude(self) -> list[Finding]:
        if not self.answers:
            return []
        limit = self.margin.limit
        by = "text" if limit is None else f"logprob margin {limit:.2f}"
        actual = (
            f"{self.answers} answers, {self._compared} compared by {by}, {self.wrong} differ, {self.ties} near ties"
        )
        if open_ := self._withdrawn + len(self._unconfirmed):
            actual += f", {open_} not confirmed by the idle server after the load"
        if not self._compared:
            return [NotJudged(self.check, self.expected, actual)]
        return [CheckResult(self.check, self.expected, actual, "unknown" if open_ else "pass")]
