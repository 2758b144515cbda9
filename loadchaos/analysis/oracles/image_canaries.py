"""Compare answers about pictures under load with those of the idle server."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.core.ledger.rows import QuestionRow

_FACTOR = 4.0
_ROLES = {
    "same": "the image that was asked before the load", "neighbour": "this image with one other pixel",
    "uuid": "this image with a uuid",
}  # fmt: skip


class ImageCanariesOracle(Oracle):
    """Compares each answer with the idle ones about the same picture. The answer of another picture is a failure of its
    own. One other pixel may move logprobs more than a load does, so the moves of the idle answers count as well.
    """

    name: ClassVar[str] = "image_canaries"
    detects: ClassVar[str] = "an image answered from another image: the same question, one other pixel, a used uuid"
    false_alarms: ClassVar[str] = (
        "only pictures that the idle server answers equally with one other pixel, and unlike all other pictures, are "
        f"asked; {MARGIN_RULE}, and above 4 times the moves by one pixel"
    )
    asked_by: ClassVar[str] = "images"
    check: ClassVar[str] = "image_answers"
    expected: ClassVar[str] = "answers as when idle"

    def __init__(self) -> None:
        super().__init__()
        self._idle: dict[str, list[QuestionRow]] = {}
        self._moved = 0.0

    def judge(self, row: QuestionRow) -> None:
        if row["when"] == "idle":
            if row["role"] != "uuid":
                self._learn(row)
            return
        own = self._idle.get(row["kind"])
        if own is None:
            return
        idle = {kind: rows[0] for kind, rows in self._idle.items()}
        about = f"{_ROLES.get(row['role'], row['role'])}; "
        if (found := self.judge_beside(row, own[0], idle, about, least=_FACTOR * self._moved)) is not None:
            self._report(row, own[0], *found)

    def _learn(self, row: QuestionRow) -> None:
        rows = self._idle.setdefault(row["kind"], [])
        rows.append(row)
        for one, two, before, now in zip(
            rows[0].get("tokens", ()), row.get("tokens", ()), rows[0].get("gaps", ()), row.get("gaps", ()), strict=False
        ):
            if one != two:
                return
            self._moved = max(self._moved, abs(before - now))

    def _report(self, row: QuestionRow, idle: QuestionRow, other: str | None, about: str) -> None:
        """Report an answer; `other` is the picture whose idle answer it is."""
        failure_id = "answer_changed_under_load" if other is None else "answer_of_another_image"
        facts = {"image": f"the number {row['kind']}", "idle answer": idle["text"]}
        if other is not None:
            facts["answer about the image"] = f"the number {other}"
        self.report(failure_id, row, idle["text"], about, **facts)

    def compared(self) -> str:
        return f"{self.answers} answers about {len(self._idle)} images"
