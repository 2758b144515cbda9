"""Interface of the oracles, which find wrong answers, and what they share."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.oracles.counters import CounterMoves
from loadchaos.analysis.oracles.margin import Margin
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import MetricsRow, QuestionRow

_FACT_CHARS = 200
MARGIN_RULE = "only a difference above 4 times the 99.9th percentile by which a benign load moves logprobs counts"
"""False alarms of the oracles that compare two answers."""


class Oracle(Detector):
    """Folds `question` rows and reports wrong answers.

    Attributes:
        name: as in `loadchaos oracles`.
        detects: what it finds, in one sentence.
        false_alarms: what keeps it from false alarms.
        asked_by: part of `correctness` that asks for it.
    """

    slow: ClassVar[bool] = False
    name: ClassVar[str]
    detects: ClassVar[str]
    false_alarms: ClassVar[str]
    asked_by: ClassVar[str]

    def __init__(self) -> None:
        self.margin, self._moves = Margin(), CounterMoves()
        self._pending: list[Failure] = []
        self.wrong = self.doubtful = 0

    def _on_question(self, row: QuestionRow) -> None:
        self.margin.feed(row)
        self.judge(row)

    def judge(self, row: QuestionRow) -> None:
        """Judge one answer."""

    def _on_metrics(self, row: MetricsRow) -> None:
        self._moves.feed(row)

    def poll(self, now_ns: int) -> list[Failure]:  # noqa: ARG002 - the protocol's
        """Wrong answers since the last call."""
        pending, self._pending = self._pending, []
        return pending

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
