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
    assert (failure["id"], failure["severity"], failure["count"]) == ("answers_without_text", "request", 1)
    assert failure["title"].startswith("3 of 11 answers of traffic odd hold no text")
    assert verdict["verdict"] == "fail"
    assert check(verdict, "answer_text") is None


@pytest.mark.parametrize(
    ("with_text", "odd", "detail", "tokens"),
    [(57, 3, {"no_text": True}, 16), (0, 40, {"thin_text": 4}, 16), (0, 10, {"no_text": True}, 1)],
    ids=["missing from a twentieth", "shorter than its tokens", "of nothing but end tokens"],
)
def test_answer_text_that_proves_nothing_is_unknown(
    history: History, with_text: int, odd: int, detail: dict[str, Any], tokens: int
) -> None:
    history.begin().work(5)
    answers(history, with_text, {})
    answers(history, odd, detail, tokens)
    verdict = history.end().verdict()
    assert verdict["failures"] == []
    assert history.unknowns(verdict) == {"answer_text"}
    if "thin_text" in detail:
        found = check(verdict, "answer_text")
        assert found is not None
        assert found["actual"] == "odd: 40 with fewer bytes of text than tokens of 40 answers"


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
