from collections.abc import Sequence
from typing import Any

import pytest

from loadchaos.analysis.detectors.equal_answers import EqualAnswers
from tests.rows import S


def found(answers: Sequence[str | None], *, same_prompt: bool = False) -> list[str]:
    """Requests that are reported for answers with these hashes; None: one without a hash."""
    detector = EqualAnswers()
    for n, answer in enumerate(answers):
        row: dict[str, Any] = {"id": f"r{n}", "at_ns": n * S, "traffic": "t"}
        detector.fold({**row, "row": "begin", "hash": "p" if same_prompt else f"p{n}"})
        content = {} if answer is None else {"content": {"hash": answer, "begin": "I am sorry"}}
        detector.fold({**row, "row": "end", "outcome": "ok", **content})
    failures = detector.poll(0)
    assert {f.id for f in failures} <= {"answers_equal"}
    assert all(f.wrong[0].got == "I am sorry" for f in failures)
    return [f.wrong[0].subject for f in failures]


def test_equal_answers_to_different_prompts_are_reported_each() -> None:
    assert found(["x"] * 20) == [f"r{n}" for n in range(20)]


def test_equal_answers_that_begin_under_load_are_reported() -> None:
    assert len(found([f"a{n}" for n in range(60)] + ["x"] * 50)) == 50


def test_equal_answers_to_one_prompt_are_right() -> None:
    assert found(["x"] * 60, same_prompt=True) == []


@pytest.mark.parametrize("answers", [["x"] * 15, ["x", "x", "x", "y"] * 30, [None, *["x"] * 7] * 10, [None] * 60])
def test_answers_that_are_alike_by_habit_are_not_reported(answers: list[str | None]) -> None:
    assert found(answers) == []
