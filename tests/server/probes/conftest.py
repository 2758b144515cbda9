"""A server that answers questions by a function, without HTTP."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.core.ledger.rows import QuestionRow
from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.question import Question

Answer = Callable[[Question, Purpose, str], str]


class FunctionAsker(RecordedAsker):
    """Keeps the questions, answers by `answer(question, purpose, model)`.

    An answer that begins with `error:` is an error.
    """

    model = "base"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.rows: list[Any] = []
        self.questions: list[Question] = []
        self._groups = itertools.count(1)

    def emit(self, row: Any) -> None:
        self.rows.append(row)

    def new_group(self) -> int:
        return next(self._groups)

    async def ask(
        self, question: Question, purpose: Purpose, *, stream: bool = False, model: str | None = None
    ) -> QuestionRow:
        text = self.answer(question, purpose, model or self.model)
        error = text.removeprefix("error:") if text.startswith("error:") else ""
        row: Any = {
            "row": "question", "part": purpose.part, "kind": purpose.kind, "when": purpose.when, "role": purpose.role,
            "group": purpose.group, "expected": question.expected, "text": "" if error else text, "error": error,
            "status": 400 if error else 200, "model": model or self.model, "stream": stream,
        }  # fmt: skip
        self.questions.append(question)
        self.rows.append(row)
        return row  # type: ignore[no-any-return]


@pytest.fixture
def asker() -> type[FunctionAsker]:
    return FunctionAsker
