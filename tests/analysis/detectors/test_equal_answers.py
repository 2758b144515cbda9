from collections.abc import Sequence
from typing import Any

import pytest

from loadchaos.analysis.detectors.equal_answers import EqualAnswers, RepeatedAnswers
from loadchaos.analysis.failure import Failure
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


def repeated(answers: Sequence[tuple[str | None, str]], prompts: str = "") -> tuple[list[str], list[Any]]:
    """Requests that are reported for answers with these ids and hashes, and the notes; a letter is a prompt."""
    detector, failures = RepeatedAnswers(), list[Failure]()
    for n, (name, text) in enumerate(answers):
        row: dict[str, Any] = {"id": f"r{n}", "at_ns": n * S, "traffic": "t"}
        detector.fold({**row, "row": "begin", "hash": prompts[n] if prompts else f"p{n}"})
        detector.fold({**row, "row": "end", "outcome": "ok", "request_id": name, "content": {"hash": text}})
        failures += detector.poll(0)
    ended = detector.finish()
    failures += [one for one in ended if isinstance(one, Failure)]
    assert {f.id for f in failures} <= {"answer_repeated"}
    return [f.wrong[0].subject for f in failures], [one for one in ended if isinstance(one, str)]


def test_answer_that_comes_again_with_its_id_is_reported() -> None:
    again = [("a", "x"), ("b", "y"), ("a", "x"), ("c", "z"), ("b", "y")]
    assert repeated(again) == (["r2"], []), "one failure, which counts both, at the end of a short run"
    assert repeated([*((f"n{n}", f"t{n}") for n in range(16)), *again]) == (["r18", "r20"], [])
    header = [(f"header-{n}", text) for n, (_, text) in enumerate(again)]
    assert repeated(header) == ([], [])


def test_answer_that_comes_again_for_its_own_prompt_is_right() -> None:
    assert repeated([("a", "x"), ("b", "y"), ("c", "z"), ("a", "x")], "pqrp") == ([], [])


@pytest.mark.parametrize("names", [["chatcmpl-123"], [""], ["w1", "w2", "w3", "w4"]])
def test_one_id_for_all_answers_is_a_note(names: list[str]) -> None:
    texts = ["yes", "yes", "no", "yes", "no", "maybe"] * 8
    found, notes = repeated([(names[n % len(names)], text) for n, text in enumerate(texts)])
    assert found == []
    (note,) = notes
    assert repr(min(names)) in note


def test_ids_that_two_replicas_give_prove_nothing() -> None:
    first = [(str(n), f"a{n}") for n in range(20)]
    found, notes = repeated([*first, *((str(n), f"b{n}") for n in range(19)), ("19", "a19")])
    assert (found, len(notes)) == ([], 1)


def test_answers_without_an_id_are_not_compared() -> None:
    assert repeated([(None, "x")] * 20) == ([], [])
