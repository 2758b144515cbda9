"""Capacity search: steps of a made-up server, and of the embedded engine in virtual time."""

from dataclasses import replace
from typing import Any

import pytest

from bench.capacity import CASES, search
from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.campaigns.capacity.search import CapacitySearch, NextStep, SearchSettings
from loadchaos.core.typed_json import from_json, to_json


def step(**data: Any) -> CapacityStep:
    return from_json(CapacityStep, data)


def searched(capacity: float, settings: SearchSettings, blur: float = 0.0, **limits: float) -> CapacitySearch:
    """Search a server that meets the goal up to `capacity`; within `blur` of it nothing can be proved."""
    found = CapacitySearch(settings)
    while len(found.steps) < 60 and (chosen := found.next()) is not None:
        assert chosen.load <= settings.most
        good = chosen.load <= capacity
        status = "met" if good else "not_met"
        if chosen.load > limits.get("client", float("inf")):
            status = "client"
        elif abs(chosen.load / capacity - 1) < blur or (good and chosen.scout):
            status = "undecided"
        found.add(
            step(
                load=chosen.load, status=status, leans=good, scout=chosen.scout, queue_grows=not good,
                requests_per_s=min(chosen.load, 1.05 * capacity), e2e_p50_s=1.0 if chosen.load < capacity / 2 else 2.0,
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("capacity", [0.037, 0.9, 1.0, 7.3, 64.0, 1234.5, 45678.0])
def test_search_encloses_the_capacity_within_the_tolerance(capacity: float) -> None:
    settings = SearchSettings("rate", 1.0, 100_000.0)
    found = searched(capacity, settings)
    result = to_json(found.answer())
    assert result["known"]
    assert result["low"] <= capacity < result["high"] <= 1.031 * result["low"]
    assert len(found.steps) <= 18


@pytest.mark.parametrize("capacity", [1, 2, 3, 17, 200])
def test_search_of_users_ends_at_whole_users(capacity: int) -> None:
    settings = SearchSettings("concurrency", 1.0, 10_000.0)
    found = searched(capacity, settings)
    assert all(s.load == round(s.load) for s in found.steps)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= capacity < found.high
    assert found.high - found.low <= max(1, 0.05 * found.low)


def test_search_reports_no_capacity_above_a_load_that_failed() -> None:
    found = CapacitySearch(SearchSettings("rate", 1.0, 100.0))
    for load, status in ((4.0, "met"), (8.0, "not_met"), (16.0, "met")):
        found.add(step(load=load, status=status))
    assert (found.answer().capacity, found.answer().high) == (4.0, 8.0)


def test_interval_has_the_rates_that_were_offered() -> None:
    settings = SearchSettings("rate", 4.0, 100.0)
    found = CapacitySearch(settings)
    found.steps = [
        step(load=10.0, status="met", requests=900, measured_s=100.0),
        step(load=12.0, status="not_met", requests=1300, measured_s=100.0),
    ]
    low, high = to_json(found.answer())["interval"]
    assert (low, high) == (pytest.approx(9.0 * 0.97), pytest.approx(13.0 * 1.03))
    found.steps = [replace(s, requests=round(10 * s.load * 11)) for s in found.steps]
    assert list(found.answer().bounds) == [pytest.approx(9.7), pytest.approx(13.2 * 1.03, rel=1e-3)]
    found.steps = found.steps[:1]
    assert list(found.answer().bounds) == [pytest.approx(9.7), None]


def test_search_without_a_load_that_meets_the_goal_is_unknown() -> None:
    settings = SearchSettings("concurrency", 4.0, 100.0)
    found = searched(0.5, settings)
    assert to_json(found.answer()) == {
        "capacity": None, "low": None, "high": 1.0, "client_limit": None, "known": False, "at_least": False,
        "why": "no load was proved to meet the goal", "interval": [None, 1.0], "narrow": False,
    }  # fmt: skip


def test_search_up_to_the_highest_load_gives_a_lower_bound() -> None:
    settings = SearchSettings("rate", 1.0, 20.0)
    result = to_json(searched(100.0, settings).answer())
    assert (result["low"], result["high"], result["at_least"]) == (20.0, None, True)
    assert "the highest load that is tried (20) met the goal" in result["why"]


def test_first_proof_keeps_away_from_a_load_that_seems_to_fail() -> None:
    found = CapacitySearch(SearchSettings("rate", 1.0, 1000.0))
    assert found.proof() is None
    scout = {"scout": True, "status": "undecided", "why": ""}
    for load, good in ((10.0, True), (40.0, False), (20.0, True), (37.0, True)):
        found.add(step(**scout, load=load, leans=good))
    assert found.proof() == NextStep(20.0, scout=False)
    found.add(step(**scout, load=25.0, leans=False))
    assert found.proof() == NextStep(20.0, scout=False)
    found.add(step(**scout, load=21.0, leans=False))
    assert found.proof() == NextStep(10.0, scout=False)
    found.add(step(load=10.0, status="met", leans=True))
    assert found.proof() is None


def test_search_limited_by_the_client_blames_no_server() -> None:
    settings = SearchSettings("rate", 1.0, 1000.0)
    result = to_json(searched(100.0, settings, client=30.0).answer())
    assert result["high"] is None
    assert 28 <= result["low"] <= 30
    assert result["at_least"]
    assert result["why"] == "our own client was the limit"


@pytest.mark.parametrize("capacity", [5.0, 47.0])
def test_search_around_undecided_loads_stays_true(capacity: float) -> None:
    settings = SearchSettings("rate", 1.0, 1000.0)
    result = to_json(searched(capacity, settings, blur=0.08).answer())
    assert result["low"] <= capacity * 0.92 + 0.01
    assert result["high"] >= capacity * 1.08 - 0.01
    assert result["low"] >= 0.8 * capacity


def test_search_that_is_restored_goes_on_alike() -> None:
    settings = SearchSettings("rate", 1.0, 1000.0)
    whole = searched(33.0, settings)
    for n in range(len(whole.steps)):
        again = CapacitySearch(settings)
        for before in whole.steps[:n]:
            again.add(before)
        chosen = again.next()
        assert chosen is not None
        assert chosen.load == whole.steps[n].load


def test_search_without_steps_is_unknown() -> None:
    settings = SearchSettings("rate", 1.0, 1000.0)
    assert CapacitySearch(settings).answer().why == "no step ended"


@pytest.mark.slow
def test_search_of_the_embedded_engine_is_near_its_capacity() -> None:
    """Its capacity in the long run is that of bench/capacity.py."""
    case = next(c for c in CASES if c.name == "prefill")
    found: dict[str, Any] = search(case, seed=1)
    assert found["known"]
    assert found["low"] == pytest.approx(20.3, rel=0.06)
    assert found["high"] >= 20.2


def test_search_rejects_a_load_too_near_the_saturation() -> None:
    """Short steps meet the goal at 97 % of what the server completes; the queue would grow long later."""
    settings = SearchSettings("rate", 1.0, 1000.0, goal=0.99, limits_s={"ttft": 0.5})
    found = CapacitySearch(settings)
    base = {"scout": False, "why": "", "completion_variation": 0.3, "ttft_p50_s": 0.0}
    for load in (90.0, 97.0):
        found.add(step(**base, load=load, status="met", leans=True))
    assert found.low == 97.0
    over = {"queue_grows": True, "completed": 2000, "completing_s": 20.0}
    found.add(step(**base, **over, load=120.0, status="not_met", leans=False))
    assert found.low == 90.0
    assert "too near the 100/s that steps with a queue completed on average: in the long run" in found.steps[1].why
    assert (found.steps[1].status, found.steps[1].leans) == ("undecided", False)
