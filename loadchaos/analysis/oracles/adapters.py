"""Compare answers of LoRA adapters with those of the idle server."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.core.ledger.rows import QuestionRow


class AdaptersOracle(Oracle):
    """Compares each answer with the idle ones of all models. A model is left out of a comparison where the idle server
    gave both models the same answer.
    """

    name: ClassVar[str] = "adapters"
    detects: ClassVar[str] = "an adapter that is not applied, or another adapter in its place"
    false_alarms: ClassVar[str] = (
        "only answers in which an adapter differs from the base model or another adapter when idle are compared, and "
        f"{MARGIN_RULE}"
    )
    asked_by: ClassVar[str] = "adapters"
    check: ClassVar[str] = "adapter_answers"
    expected: ClassVar[str] = "answers as when idle"

    def __init__(self) -> None:
        super().__init__()
        self._idle: dict[str, dict[str, QuestionRow]] = {}
        self._base = ""
        self._told: set[tuple[str, str]] = set()

    def judge(self, row: QuestionRow) -> None:
        idle = self._idle.setdefault(row["hash"], {})
        if row["when"] == "idle":
            self._base = self._base or row["model"]  # the base model is asked first
            idle[row["model"]] = row
            return
        own = idle.get(row["model"])
        if own is None:
            return
        self._told |= {(row["hash"], row["model"])} if any(o["text"] != own["text"] for o in idle.values()) else set()
        if (found := self.judge_beside(row, own, idle)) is not None:
            self._report(row, own, *found)

    def _report(self, row: QuestionRow, own: QuestionRow, other: str | None, about: str) -> None:
        """Report an answer; `other` is the model whose idle answer it is."""
        facts = {"model": row["model"], "idle answer": own["text"]}
        failure_id = "answer_changed_under_load"
        if other is not None:
            facts["idle answer of"] = other
            about = f"the model {row['model']} answered as {other} does when idle; {about}"
            failure_id = "adapter_ignored" if other == self._base else "answer_of_another_adapter"
        self.report(failure_id, row, own["text"], about, **facts)

    def compared(self) -> str:
        models = len({model for idle in self._idle.values() for model in idle})
        return f"{self.answers} answers of {models} models"

    def beside(self) -> str:
        return "" if self._told else "; all models answer alike when idle"

    def is_blind(self) -> bool:
        return not self._told
