import pytest

from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.figures.requests import RequestStats
from loadchaos.analysis.incidents.attribution import AttackLog
from loadchaos.analysis.incidents.bad_answers import BadAnswer
from loadchaos.analysis.incidents.explain import Explainer
from loadchaos.analysis.incidents.tracker import IncidentTracker
from tests.rows import S


@pytest.mark.parametrize(
    ("outcome", "text", "at_s", "explained"),
    [
        ("http_error", "Internal Server Error", 101, True),
        ("http_error", "", 101, True),
        ("http_error", "the flux has no slot", 101, False),
        ("http_error", "Internal Server Error", 90, False),
        ("http_error", "Internal Server Error", 126, False),
        ("stream_error", "the flux has no slot", 101, True),
        ("timeout", "", 101, False),
    ],
)
def test_failure_in_the_log_explains_answers_near_it_that_say_nothing(
    outcome: str, text: str, at_s: int, explained: bool
) -> None:
    recorded: list[Failure] = []

    def record(failure: Failure) -> Failure:
        recorded.append(failure)
        return failure

    explainer = Explainer(IncidentTracker(RequestStats(), AttackLog()), record)
    logged = Failure("slot_missing", "request", "a slot is missing", evidence("server.log", "x", 3), 100 * S)
    explainer.add_logged(100 * S, logged)
    explainer.explain(BadAnswer(at_s * S, (at_s - 1) * S, "chat", outcome, text, 4, {"status": 500}))  # type: ignore[typeddict-item]
    assert logged.at_clients == (4 if explained else 0)
    assert len(recorded) == (0 if explained else 1)
