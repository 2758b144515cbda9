"""Figures of the steady state of a load."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from loadchaos.analysis.figures.steady import SteadyState
from loadchaos.analysis.verdict.model import SteadyFigures
from loadchaos.core.model import Terms
from tests.rows import MS, Row, S, answered, decisions, judged


def rows_of(requests: Iterable[tuple[float, float, int]]) -> list[Row]:
    rows: list[Row] = []
    for n, (at_s, took_s, phase) in enumerate(requests):
        at_ns = 1000 * S + round(at_s * S)
        rows += answered(at_ns, n, took_ns=round(took_s * S), phase=phase, completion_tokens=10)
    return sorted(rows, key=lambda row: row["at_ns"])


def steady_of(requests: Iterable[tuple[float, float, int]]) -> SteadyState:
    """Requests as (second, length in seconds, phase), with 10 tokens each."""
    steady = SteadyState()
    for row in rows_of(requests):
        getattr(steady, f"on_{row['row']}")(row)
    return steady


def figures_of(requests: Iterable[tuple[float, float, int]]) -> SteadyFigures | None:
    return steady_of(requests).figures()


def closed_loop(users: int, rounds: int, took_s: float, *, ramp_s: float = 0.0) -> list[tuple[float, float, int]]:
    return [(u * ramp_s / users + r * took_s, took_s, 0) for u in range(users) for r in range(rounds)]


def test_ramp_up_and_the_slow_last_requests_are_left_out() -> None:
    """Eight users whose answers take 1 s, after a ramp of 8 s; then one answer of 60 s alone."""
    found = figures_of([*closed_loop(8, 30, 1.0, ramp_s=8.0), (30.0, 60.0, 0)])
    assert found is not None
    assert found.from_s == pytest.approx(8.1, abs=0.3)
    assert found.from_s + found.seconds == pytest.approx(30.5, abs=1.0)
    assert found.requests_per_s == pytest.approx(8.0, rel=0.1)
    assert found.output_tokens_per_s == pytest.approx(80.0, rel=0.1)
    assert found.ttft_s.p50 == pytest.approx(0.5, rel=0.02)
    assert found.e2e_s.p50 == pytest.approx(1.0, rel=0.02)
    assert found.in_flight == pytest.approx(8.0, rel=0.15)


def test_users_that_begin_together_have_the_throughput_of_their_rounds() -> None:
    found = figures_of(closed_loop(16, 10, 2.5))
    assert found is not None
    assert found.requests_per_s == pytest.approx(16 / 2.5, rel=0.03)


def test_long_last_answers_are_the_end_of_the_load() -> None:
    found = figures_of([*closed_loop(20, 20, 1.0), *[(20.0, 30.0, 0)] * 20])
    assert found is not None
    assert found.from_s + found.seconds == pytest.approx(20.1, abs=0.2)
    assert found.requests_per_s == pytest.approx(20.0, rel=0.03)


def test_tokens_that_the_server_does_not_count_are_no_throughput() -> None:
    steady = SteadyState()
    rows = [
        row for n in range(100) for row in answered(1000 * S + n * S // 4, n, completion_tokens=10 if n % 2 else None)
    ]
    for row in sorted(rows, key=lambda row: row["at_ns"]):
        getattr(steady, f"on_{row['row']}")(row)
    found = steady.figures()
    assert found is not None
    assert found.output_tokens_per_s is None
    assert found.requests_per_s == pytest.approx(4.0, rel=0.05)


def test_long_load_keeps_its_throughput_in_wider_points() -> None:
    found = figures_of(closed_loop(4, 1200, 1.0, ramp_s=1.0))
    assert found is not None
    assert found.requests_per_s == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize(
    "requests",
    [
        [(0.0, 5.0, 0)] * 40,  # all at once: nobody comes after them
        [(n / 10, 1.0 + n / 20, 0) for n in range(300)],  # requests in flight grow to the end
        [(n / 10, 1.0, n // 100) for n in range(200)],  # two phases
        [(0.0, 1.0, 0)],
    ],
)
def test_load_without_a_steady_state_has_no_figures_of_it(requests: list[tuple[float, float, int]]) -> None:
    assert figures_of(requests) is None


def test_span_leaves_out_ramp_up_and_end() -> None:
    """Eight users whose answers take 1 s, after a ramp of 8 s: 22 s of 38 s."""
    span = steady_of(closed_loop(8, 30, 1.0, ramp_s=8.0)).span()
    assert span is not None
    assert span.seconds == pytest.approx(22.0, abs=1.0)
    assert span.share == pytest.approx(8 * 22 / 240, abs=0.05)


def test_span_of_all_requests_at_once_is_nothing() -> None:
    assert steady_of([(0.0, 5.0, 0)] * 40).span() == (0.0, 0.0)
    assert steady_of([(n / 10, 1.0, n // 100) for n in range(200)]).span() is None


def test_load_with_less_than_one_request_in_flight_is_steady_from_its_begin() -> None:
    """Answers of 3 ms are in flight at no end of a time span."""
    span = steady_of([(n / 5 + 0.01, 0.003, 0) for n in range(100)]).span()
    assert span is not None
    assert span.seconds == pytest.approx(20.0, abs=0.5)
    assert span.share > 0.98


@pytest.mark.parametrize(("seconds", "decision"), [(40, "pass"), (10, "unknown")])
def test_limit_of_a_load_that_was_to_stay_the_same_needs_a_steady_state(seconds: int, decision: str) -> None:
    rows = rows_of(closed_loop(8, seconds, 1.0))
    terms = Terms("p", expect=["ttft_p50 <= 2s"], steady=True)
    assert decisions(judged(terms, rows)) == [decision]
    assert decisions(judged(replace(terms, steady=False), rows)) == ["pass"]


def test_requests_that_were_not_sent_are_not_in_flight() -> None:
    steady = SteadyState()
    missed: Any = {"row": "end", "at_ns": 5 * MS, "outcome": "missed"}
    steady.on_end(missed)
    for row in answered(1000 * S, 1):
        getattr(steady, f"on_{row['row']}")(row)
    assert steady.figures() is None
