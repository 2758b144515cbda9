import random
from typing import Any

import pytest

from loadchaos.analysis.capacity.queue_model import QueueModel, variance_to_mean
from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.core.typed_json import from_json


@pytest.mark.parametrize(("load", "slack_s"), [(0.9, 20.0), (0.8, 10.0)])
def test_share_in_time_matches_a_simulated_queue(load: float, slack_s: float) -> None:
    """One server with exponential times: the share that waits no longer is known, and simulated here."""
    rng, wait_s, late, n = random.Random(5), 0.0, 0, 60_000
    for _ in range(n):
        late += wait_s > slack_s
        wait_s = max(0.0, wait_s + rng.expovariate(1.0) - rng.expovariate(load))
    model = QueueModel(completed_per_s=1.0, variation=2.0, slack_s=slack_s)
    assert model.share_in_time(load) == pytest.approx(1 - late / n, abs=0.06)


def test_share_in_time_at_the_limits() -> None:
    assert QueueModel(10.0, 1.0, 1.0).share_in_time(10.0) == 0
    assert QueueModel(10.0, 0.0, 1.0).share_in_time(9.9) == 1
    assert QueueModel(10.0, 1.0, float("inf")).share_in_time(9.9) == 1


def test_queue_model_is_made_of_overloaded_steps() -> None:
    low, full = (
        CapacityStep(load=1.0, status="met", ttft_p50_s=0.2, completed=10, completing_s=10.0),
        CapacityStep(
            load=9.0, status="not_met", queue_grows=True, completed=80, completing_s=20.0, completion_variation=0.5
        ),
    )
    model = QueueModel.of([low, full], {"ttft": 1.0, "itl_p99": 0.1}, arrivals=1.0)
    assert model is not None
    assert (model.completed_per_s, model.variation, model.slack_s) == (4.0, 1.5, 0.8)
    assert QueueModel.of([low], {"ttft": 1.0}, 1.0) is None


@pytest.mark.parametrize(
    ("more", "rate"),
    [
        ({"server": {"requests_waiting_mean": 4.0}}, 8.0),
        ({"server": {"requests_waiting_mean": 0.0}, "queue_growth": 0.5}, None),  # it decodes slowly, and nothing waits
        ({"server": {}, "queue_growth": 0.05}, 8.0),
        ({"server": {}, "queue_growth": 0.001}, None),
        ({"server": {"requests_waiting_mean": 4.0}, "status": "met"}, None),
    ],
)
def test_queue_model_without_sure_growth_needs_a_queue(more: dict[str, Any], rate: float | None) -> None:
    step = {"load": 9.0, "status": "not_met", "queue_grows": False, "completed": 80, "completing_s": 10.0, **more}
    model = QueueModel.of([from_json(CapacityStep, step)], {"ttft": 1.0}, 1.0)
    assert (None if model is None else model.completed_per_s) == rate


def test_variance_to_mean() -> None:
    assert variance_to_mean([5, 5, 5, 5]) == 0
    assert variance_to_mean([1, 2]) is None
    assert variance_to_mean([0, 0, 0, 0]) is None
    rng = random.Random(1)
    counts = [sum(rng.random() < 0.02 for _ in range(500)) for _ in range(400)]
    assert variance_to_mean(counts) == pytest.approx(1.0, abs=0.2)
