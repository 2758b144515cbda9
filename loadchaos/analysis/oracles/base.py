"""Interface of the oracles, which find wrong answers, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.oracles.counters import CounterMoves
from loadchaos.analysis.oracles.margin import AnswerDifference, Margin, answered
from loadchaos.analysis.verdict.model import NOT_ASKED, CheckResult, NotJudged
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import LearnedRow, MetricsRow, QuestionRow
from loadchaos.core.probe_names import EQUAL_ANSWERS

_FACT_CHARS = 200
FEWEST_DOUBTFUL = 3
"""Wrong answers without logprobs, which numerics may explain, that are a finding together."""
MARGIN_RULE = "only a difference above 4 times the 99.9th percentile by which a benign load moves logprobs counts"
"""False alarms of the oracles that compare two answers."""


class Oracle(Detector):
    """Folds `question` rows and reports wrong answers.

    Attributes:
        name: as in `loadchaos oracles`.
        detects: what it finds, in one sentence.
        false_alarms: what keeps it from false alarms.
        asked_by: part of `correctness` that asks for it.
        check: name of its check.
        compares: True if it compares answers to equal prompts: it is off where the idle server gives different ones.
        expected: what its check expects.
        answers: answers that were compared.
    """

    name: ClassVar[str]
    detects: ClassVar[str]
    false_alarms: ClassVar[str]
    asked_by: ClassVar[str]
    check: ClassVar[str]
    compares: ClassVar[bool] = True
    expected: ClassVar[str] = "equal answers"

    def __init__(self) -> None:
        super().__init__()
        self.margin, self._moves = Margin(), CounterMoves()
        self.answers = self.wrong = self.doubtful = self.ties = self._skipped = 0
        self._not_compared = self._off_why = ""
        self._unanswered, self._error = 0, ""

    def on_learned(self, row: LearnedRow) -> None:
        if self.compares and row["kind"] == EQUAL_ANSWERS:
            self._not_compared = row["why"]
        elif row["kind"] == self.asked_by:
            self._off_why = row["why"]

    def on_question(self, row: QuestionRow) -> None:
        self.margin.on_question(row)
        under_load = row.get("part") == self._part and row.get("when") == "load"
        if under_load and not answered(row):
            self._unanswered, self._error = self._unanswered + 1, row["error"]
        if self._not_compared:
            self._skipped += under_load
        elif self.takes(row):
            self.judge(row)

    def finish(self) -> list[Finding]:
        """Checks and notes; where it is off, an unknown check."""
        if not self._not_compared:
            return self.conclude()
        if not self._skipped:
            return []
        skipped = f"{self._skipped} answers not compared"
        return [NotJudged(self.check, "equal answers", f"{skipped}: {self._not_compared}")]

    @property
    def _part(self) -> str:
        """Part of the rows of its questions."""
        return "reference" if self.asked_by == "alone_vs_load" else self.asked_by

    def unjudged(self) -> NotJudged:
        """The check of an oracle that the profile asks for and that had nothing to judge."""
        why = self._not_compared or self._off_why or NOT_ASKED
        if self._unanswered and not self._off_why:
            why = f"none of {self._unanswered} questions under load was answered"
            why += f"; the last error is: {self._error[:_FACT_CHARS]}" if self._error else ""
        return NotJudged(self.check, self.expected, f"nothing was judged: {why}")

    def takes(self, row: QuestionRow) -> bool:
        """True for an answer that `judge` needs: a whole one to a question of its part."""
        return row.get("part") == self.asked_by and answered(row)

    def proved(self, difference: AnswerDifference) -> bool:
        """True for more than numerics. One without logprobs is counted as doubtful, another one as a near tie."""
        if not difference.proved:
            self.doubtful += difference.gap is None
            self.ties += difference.gap is not None
        return difference.proved

    def judge_beside(
        self,
        row: QuestionRow,
        own: QuestionRow,
        idle: Mapping[str, QuestionRow],
        about: str = "",
        *,
        least: float = 0.0,
    ) -> tuple[str | None, str] | None:
        """Compare an answer with the idle one to the same question, and find whose idle answer it is instead.

        Returns (key in `idle` or None, what differs) of an answer to report. Without logprobs that is the third one that
        is another's; a margin up to `least` is a near tie.
        """
        self.answers += 1
        difference = self.margin.compare(own, row)
        if difference is None:
            return None
        other = next((key for key, answer in idle.items() if answer["text"] == row["text"]), None)
        about += difference.describe()
        if difference.proved and (difference.gap or 0.0) > least:
            return other, about
        self.doubtful += difference.gap is None
        self.ties += difference.gap is not None
        if difference.gap is None and other is not None and self.doubtful == FEWEST_DOUBTFUL:
            return other, f"{self.doubtful} answers differ; {about}"
        return None

    def conclude(self) -> list[Finding]:
        """The check: unknown where the oracle is blind, or answers are doubtful."""
        if not self.answers:
            return []
        actual = f"{self.compared()}, {self.differing()} differ, {self.ties} near ties{self.beside()}"
        actual += f", {self.doubtful} differ without logprobs" if self.doubtful else ""
        if self.is_blind():
            return [NotJudged(self.check, self.expected, actual)]
        return [CheckResult(self.check, self.expected, actual, "unknown" if self.doubtful else "pass")]

    def compared(self) -> str:
        """Describe what was compared."""
        return f"{self.answers} answers"

    def differing(self) -> str:
        return str(self.wrong)

    def beside(self) -> str:
        """Describe what else counts for the check."""
        return ""

    def is_blind(self) -> bool:
        """True where the answers that were compared prove nothing."""
        return False

    def judge(self, row: QuestionRow) -> None:
        """Judge one answer."""

    def on_metrics(self, row: MetricsRow) -> None:
        self._moves.on_metrics(row)

    def report(self, failure_id: str, row: QuestionRow, expected: str, about: str, **facts: object) -> None:
        """Report one wrong answer.

        Args:
            failure_id: id of the failure.
            row: the wrong answer.
            expected: the right text.
            about: comparison and margin in words.
            facts: further evidence.
        """
        self.wrong += 1
        subject = f"{row['part']} {row['kind']}{' ' + row['role'] if row['role'] else ''}, question {row['n']}"
        idle = self.margin.reference(row)
        if idle is not None and row["when"] == "load":
            facts["idle answer"] = idle["text"][:_FACT_CHARS]
        facts["counters that moved"] = self._moves.between(row["sent_ns"], row["at_ns"]) or "none that is known here"
        facts["requests beside it"] = self._moves.beside(row["sent_ns"], row["at_ns"]) or None
        facts["cached tokens"] = row.get("cached_tokens")
        shown = {name: value for name, value in facts.items() if value is not None}
        self._pending.append(
            wrong_failure(
                WrongAnswer(
                    failure_id, subject, row["at_ns"], self.name, about, expected=expected, got=row["text"],
                    prompt=row["prompt"], facts=shown,
                )
            )
        )  # fmt: skip
