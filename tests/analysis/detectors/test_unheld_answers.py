import pytest

from tests.analysis.conftest import History


def answered(history: History, n: int, **content: object) -> None:
    for _ in range(n):
        history.answer(history.send(1, traffic="ruled"), "ok", content=content)


@pytest.mark.parametrize(
    ("judged", "not_judged", "check", "proved"),
    [
        ({"rule": "checked"}, {"rule": "cut"}, "schemas", "held to their schema"),
        ({"quoted": True}, {"quoted": False}, "secret_words", "repeat the secret word"),
    ],
)
def test_answers_that_no_rule_judged_leave_wrong_answers_unknown(
    history: History, judged: dict[str, object], not_judged: dict[str, object], check: str, proved: str
) -> None:
    history.begin().work(5)
    answered(history, 1, **judged)
    answered(history, 19, **not_judged)
    verdict = history.end().verdict(expect=["wrong_answers == 0"])
    assert (verdict["verdict"], history.unknowns(verdict)) == ("unknown", {check, "wrong_answers"})
    assert verdict["expectations"][0]["verdict"] == "unknown"
    assert proved in verdict["expectations"][0]["actual"]
    answered(history, 2, **judged)
    verdict = history.verdict(expect=["wrong_answers == 0"])
    assert (verdict["verdict"], verdict["expectations"][0]["actual"]) == ("pass", "0")


def test_answers_without_room_for_their_schema_are_a_note(history: History) -> None:
    history.begin().work(5)
    answered(history, 20, rule="no_room")
    verdict = history.end().verdict(expect=["wrong_answers == 0"])
    assert verdict["verdict"] == "pass"
    assert "traffic ruled: 20 answers ended at their limit of tokens" in " ".join(verdict["notes"])
