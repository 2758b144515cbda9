import pytest

from tests.analysis.conftest import History


@pytest.mark.parametrize("body", ["busy", ""])
def test_health_that_is_503_while_requests_are_answered_is_a_note(history: History, body: str) -> None:
    history.begin().work(2)
    history.health, history.body = 503, body
    history.work(10)
    history.health = 200
    verdict = history.work(2).idle(2).end().verdict()
    assert verdict["verdict"] == "pass", verdict
    (note,) = [n for n in verdict["notes"] if "load balancer" in n]
    assert note.startswith("/health was 503 in ")
    assert {s["state"] for s in verdict["states"]} <= {"healthy", "degraded", "dying", "terminated"}


def test_health_that_is_503_while_nothing_is_answered_is_no_such_note(history: History) -> None:
    history.begin().work(2)
    history.health = 503
    verdict = history.idle(4).end().verdict()
    assert not [n for n in verdict["notes"] if "load balancer" in n]


def test_health_that_is_200_while_requests_are_answered_is_silent(history: History) -> None:
    verdict = history.begin().work(5).end().verdict()
    assert not [n for n in verdict["notes"] if "load balancer" in n]
