from types import SimpleNamespace
from typing import Any

from loadchaos.load.worker.worker_plan import DEAD_SERVER_PAUSE_S, WorkerPlan


def pauses_s(*outcomes: str, took_s: float = 0.0) -> list[float]:
    plan: Any = SimpleNamespace(_backoff_s=0.1, _backoff_max_s=2.0, _rules=SimpleNamespace(engine_dead=()))
    slot: Any = SimpleNamespace(errors_in_row=0)
    rows: list[Any] = [{"outcome": outcome, "expect": ["ok"], "error": None} for outcome in outcomes]
    return [WorkerPlan.pause_s(plan, row, took_s, slot) for row in rows]


def test_pause_doubles_after_each_error_in_a_row() -> None:
    assert pauses_s(*["http_error"] * 6) == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_pause_begins_again_after_an_expected_answer_or_our_own_abort() -> None:
    for good in ("ok", "aborted"):
        assert pauses_s("http_error", "http_error", good, "http_error") == [0.1, 0.2, 0.0, 0.1]


def test_pause_counts_from_the_begin_of_the_request() -> None:
    assert pauses_s("http_error", took_s=0.5)[0] < 0


def test_pause_at_a_dead_server_has_a_minimum() -> None:
    assert pauses_s("connect_error", "connect_error")[0] == DEAD_SERVER_PAUSE_S
