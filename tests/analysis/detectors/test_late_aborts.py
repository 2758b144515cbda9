from loadchaos.analysis.detectors.late_aborts import LateAborts
from tests.analysis.conftest import History


def test_late_aborts_are_noted_by_traffic(history: History) -> None:
    history.begin()
    for outcome, n in (("ok", 7), ("aborted", 3)):
        history.answer(history.send(n, traffic="early", behaviour="abort"), outcome)
    history.answer(history.send(5, traffic="plain"))
    history.answer(history.send(5, traffic="all of them", behaviour="abort"), "aborted")
    verdict = history.work(5).end().verdict()
    assert verdict["verdict"] == "pass"
    note = "traffic early: 7 of 10 aborts came too late, after the whole answer"
    assert next(note for note in verdict["notes"] if "too late" in note).startswith(note)
    assert sum("too late" in note for note in verdict["notes"]) == 1


def test_late_aborts_leave_out_answers_that_failed_first() -> None:
    late = LateAborts()
    late.fold({"row": "begin", "id": "a", "traffic": "t", "behaviour": "abort"})
    late.fold({"row": "end", "id": "a", "traffic": "t", "outcome": "stream_error"})
    assert late.finish() == []
