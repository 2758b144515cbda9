from pathlib import Path

import pytest

from loadchaos.core.model import Outcome
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.worker_plan import DEAD_SERVER_PAUSE_S
from tests.load.wire.requests import end_row
from tests.load.worker.conftest import planned


def pauses_s(
    folder: Path, *outcomes: Outcome, took_s: float = 0.0, limits: dict[str, str] | None = None
) -> list[float]:
    plan = planned(folder, limits=limits or {})
    slot = Slot(plan.target)
    return [plan.pause_s(end_row(outcome), took_s, slot) for outcome in outcomes]


@pytest.mark.parametrize(
    ("limits", "pauses"),
    [
        ({}, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]),
        ({"backoff": "50ms", "backoff_max": "100ms"}, [0.05, *[0.1] * 5]),
        ({"backoff": "0s"}, [0.0] * 6),
    ],
)
def test_pause_doubles_after_each_error_in_a_row(tmp_path: Path, limits: dict[str, str], pauses: list[float]) -> None:
    errors: list[Outcome] = ["http_error"] * 6
    assert pauses_s(tmp_path, *errors, limits=limits) == pauses


@pytest.mark.parametrize("good", ["ok", "aborted"])
def test_pause_begins_again_after_an_expected_answer_or_our_own_abort(tmp_path: Path, good: Outcome) -> None:
    assert pauses_s(tmp_path, "http_error", "http_error", good, "http_error") == [0.1, 0.2, 0.0, 0.1]


def test_pause_counts_from_the_begin_of_the_request(tmp_path: Path) -> None:
    assert pauses_s(tmp_path, "http_error", took_s=0.5)[0] < 0


def test_pause_at_a_dead_server_has_a_minimum(tmp_path: Path) -> None:
    assert pauses_s(tmp_path, "connect_error", "connect_error")[0] == DEAD_SERVER_PAUSE_S
