from typing import Any

import pytest

from tests.analysis.conftest import History


def check(verdict: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((c for c in verdict["checks"] if c["name"] == name), None)


def answers(history: History, n: int, detail: dict[str, Any], tokens: int | None = 16) -> None:
    for _ in range(n):
        history.answer(history.send(1, traffic="odd"), "ok", detail=detail, completion_tokens=tokens)


def test_answer_text_missing_from_a_fifth_of_the_answers_is_a_failure(history: History) -> None:
    history.begin().work(5)
    answers(history, 8, {})
    answers(history, 2, {"no_text": True})
    assert history.work(5).verdict()["failures"] == [], "two may be chance"
    answers(history, 1, {"no_text": True})
    verdict = history.end().verdict()
    (failure,) = verdict["failures"]
    assert (failure["id"], failure["severity"], failure["count"]) == ("answers_without_text", "request", 3)
    assert failure["title"].startswith("3 of 11 answers of traffic odd hold no text")
    assert verdict["verdict"] == "fail"
    assert failure["wrong_answers"][0]["traffic"] == "odd"
    assert check(verdict, "answer_text") is None


def test_answer_text_missing_from_a_twentieth_is_unknown(history: History) -> None:
    history.begin().work(5)
    answers(history, 57, {})
    answers(history, 3, {"no_text": True})
    verdict = history.end().verdict()
    assert verdict["failures"] == []
    assert history.unknowns(verdict) == {"answer_text"}


def test_answer_text_shorter_than_its_tokens_is_unknown(history: History) -> None:
    history.begin().work(5)
    answers(history, 40, {"thin_text": 4})
    verdict = history.end().verdict()
    assert verdict["failures"] == []
    assert history.unknowns(verdict) == {"answer_text"}
    found = check(verdict, "answer_text")
    assert found is not None
    assert found["actual"] == "odd: 40 with fewer bytes of text than tokens of 40 answers"


@pytest.mark.parametrize(
    ("whole", "half", "unknown"),
    [(range(96, 126), [54] * 3, True), (range(96, 126), [54] * 2, False), (range(60, 200, 4), [54] * 3, False)],
)
def test_answer_text_of_half_the_usual_size_is_unknown(
    history: History, whole: range, half: list[int], unknown: bool
) -> None:
    """Not where only a few answers are short, nor where the sizes of all differ."""
    history.begin().work(5)
    for size in [*whole, *half]:
        answers(history, 1, {"text_bytes": size, "text_tokens": 24})
    verdict = history.end().verdict()
    assert verdict["failures"] == []
    assert history.unknowns(verdict) == ({"answer_sizes"} if unknown else set())


@pytest.mark.parametrize(("empty", "failed"), [(6, False), (10, True)])
def test_answer_text_of_end_tokens_is_unknown_and_a_failure_in_all_answers(
    history: History, empty: int, failed: bool
) -> None:
    history.begin().work(5)
    answers(history, empty, {"no_text": True}, tokens=1)
    answers(history, 10 - empty, {})
    verdict = history.end().verdict()
    assert [(f["id"], f["count"]) for f in verdict["failures"]] == ([("answers_without_text", 10)] if failed else [])
    assert history.unknowns(verdict) == (set() if failed else {"answer_text"})


@pytest.mark.parametrize(
    ("odd", "found", "few"),
    [
        ("special_tokens", "answers_of_special_tokens", 1),
        ("control_characters", "answers_of_control_characters", 1),
        ("copies_prompt", "answers_copy_prompt", 4),
    ],
)
def test_answer_text_that_answers_no_prompt_is_a_wrong_answer(history: History, odd: str, found: str, few: int) -> None:
    def odd_answers(n: int) -> None:
        for _ in range(n):
            content = {"odd": odd, "begin": "<pad><pad>"}
            history.answer(history.send(1, traffic="odd"), "ok", content=content, completion_tokens=16)

    history.begin().work(5)
    odd_answers(few)
    answers(history, 10 - few, {})
    history.work(2)
    assert history.verdict()["failures"] == [], "a few are the model's own"
    odd_answers(10)
    verdict = history.end().verdict()
    (failure,) = verdict["failures"]
    assert (failure["id"], failure["count"]) == (found, 10 + few)
    assert failure["wrong_answers"][0]["got"] == "<pad><pad>"
    assert "answers of traffic odd" in failure["title"]


@pytest.mark.parametrize(("odd", "unknown"), [(1, False), (2, True), (100, True)])
def test_answer_chunks_above_their_tokens_are_unknown(history: History, odd: int, unknown: bool) -> None:
    history.begin().work(5)
    already = sum(r["row"] == "end" for r in history.rows)
    answers(history, 1500 - odd - already, {})
    answers(history, odd, {"extra_chunks": 3})
    verdict = history.end().verdict()
    assert history.unknowns(verdict) == ({"answer_chunks"} if unknown else set())


def test_answer_text_of_rare_odd_answers_says_nothing(history: History) -> None:
    history.begin().work(5)
    answers(history, 200, {})
    answers(history, 6, {"no_text": True}, tokens=1)
    answers(history, 3, {"no_text": True})
    answers(history, 3, {"thin_text": 7})
    verdict = history.end().verdict()
    assert (verdict["failures"], history.unknowns(verdict)) == ([], set())
