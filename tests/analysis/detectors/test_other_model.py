from tests.analysis.conftest import History


def test_answers_of_another_model_are_a_failure_and_stay_answered(history: History) -> None:
    history.begin().work(5)
    for _ in range(3):
        history.answer(history.send(1, traffic="aliased"), "ok", detail={"other_model": "tiny-b"})
    verdict = history.end().verdict(expect=["ok_share >= 95%"])
    (failure,) = verdict["failures"]
    assert (failure["id"], failure["count"]) == ("answer_of_another_model", 3)
    assert "tiny-b" in failure["wrong_answers"][0]["summary"]
    assert verdict["expectations"][0]["verdict"] == "pass"
