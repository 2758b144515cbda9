from loadchaos.analysis.verdict.model import TextDifference
from loadchaos.analysis.wrong_answer import EXCERPT_CHARS, WrongAnswer, wrong_failure
from tests.analysis.conftest import History

WRONG = WrongAnswer(
    "canary_changed", "probe-17", 5, "copy", "asked for zebra", expected="a zebra", got="a zero", prompt="Say: zebra"
)


def test_first_difference_is_the_first_character_that_differs() -> None:
    assert WRONG.first_difference == 4
    assert WrongAnswer("x", "1", 0, "copy", "", expected="a", got="ab").first_difference == 1
    assert WrongAnswer("x", "1", 0, "copy", "", expected="", got="ab").first_difference is None


def test_excerpt_of_a_long_answer_holds_the_difference() -> None:
    right = "a" * 3000
    got = right[:2000] + "X" + right[2001:]
    shown = WrongAnswer("x", "1", 0, "copy", "", expected=right, got=got).example()
    assert "X" in shown.got
    assert shown.first_difference == 2000
    assert shown.difference == TextDifference(expected="a" * 32, got=f"X{'a' * 31}")
    assert len(shown.got) <= EXCERPT_CHARS + 2


def test_wrong_failure_has_title_and_remedy_of_its_id() -> None:
    failure = wrong_failure(WRONG)
    assert failure.title == "A small prompt gets another answer under load than before"
    assert failure.remedy
    (shown,) = failure.result(None, None, None, None).wrong_answers or ()
    assert shown.subject == "probe-17"


def test_wrong_output_counts_as_a_wrong_answer_and_fails_the_default_expectation(history: History) -> None:
    history.begin().work(5)
    for error in ("the word of another request is in the answer: zebra", "text follows the [DONE] of its answer"):
        history.answer(history.send(), "wrong_output", error=error).serve(1)
    verdict = history.end().verdict()
    rules = {r["name"]: r for r in verdict["expectations"]}
    assert (rules["wrong_answers"]["actual"], rules["wrong_answers"]["verdict"]) == ("2", "fail")
    by_id = {f["id"]: f for f in verdict["failures"]}
    assert by_id["text_after_done"]["wrong_answers"][0]["summary"] == "text follows the [DONE] of its answer"
    assert verdict["verdict"] == "fail"
