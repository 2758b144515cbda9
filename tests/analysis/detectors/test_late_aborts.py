"""Clients that were to hang up and came too late are told, and nothing fails of them."""

from typing import Any

from loadchaos.analysis.detectors.late_aborts import LateAborts


def test_hang_ups_that_came_too_late_are_told_by_traffic(history: Any) -> None:
    history.begin()
    for outcome, n in (("ok", 7), ("aborted", 3)):
        history.answer(history.send(n, traffic="early", behaviour="abort"), outcome)
    history.answer(history.send(5, traffic="plain"))
    history.answer(history.send(5, traffic="all of them", behaviour="abort"), "aborted")
    verdict = history.work(5).end().verdict()
    assert verdict["verdict"] == "pass"
    late = "traffic early: 7 of 10 hang-ups came too late, the answer was whole"
    assert next(note for note in verdict["notes"] if "too late" in note).startswith(late)
    assert sum("too late" in note for note in verdict["notes"]) == 1


def test_an_answer_that_went_wrong_before_the_moment_came_is_the_servers_and_not_late() -> None:
    leaving = LateAborts()
    leaving.feed({"row": "begin", "id": "a", "traffic": "t", "behaviour": "abort"})
    leaving.feed({"row": "end", "id": "a", "traffic": "t", "outcome": "stream_error"})
    assert leaving.notes() == []
