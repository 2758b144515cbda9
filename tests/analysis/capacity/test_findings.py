from typing import Any

import pytest

from loadchaos.analysis.capacity.findings import knee, limiting_resource, saturation
from loadchaos.analysis.capacity.result import Knee, Saturation
from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.core.typed_json import from_json

QUIET = {
    "kv_usage_ratio_max": 0.2,
    "requests_running_mean": 4.0,
    "requests_running_max": 9.0,
    "requests_waiting_mean": 0.0,
}


def step(load: float, status: str = "met", **more: Any) -> CapacityStep:
    data = {
        "load": load, "status": status, "requests_per_s": load, "output_tokens_per_s": 10 * load, "e2e_p50_s": 1.0,
        "tpot_p50_s": 0.01, "over": {}, "why": "", **more,
    }  # fmt: skip
    return from_json(CapacityStep, data)


@pytest.mark.parametrize(
    ("server", "over", "resource"),
    [
        ({**QUIET, "kv_usage_ratio_max": 0.99, "requests_waiting_mean": 9}, {"ttft": 9}, "kv_cache"),
        ({**QUIET, "preemptions": 3.0}, {"itl_p99": 9}, "kv_cache"),
        ({**QUIET, "requests_running_mean": 8.9, "requests_waiting_mean": 5.0}, {"ttft": 9}, "queue"),
        ({**QUIET, "requests_waiting_mean": 5.0}, {"ttft": 9}, "prefill"),
        (QUIET, {"tpot": 9}, "decode"),
        (QUIET, {"itl_p99": 9, "ttft": 1}, "decode"),
        (QUIET, {"failed": 9}, "unknown"),
        ({}, {"ttft": 9}, "unknown"),
    ],
)
def test_limiting_resource_follows_the_counters(server: dict[str, float], over: dict[str, int], resource: str) -> None:
    found = limiting_resource([step(1), step(8, "not_met", server=server, over=over), step(16, "not_met", server={})])
    assert (found.resource, found.load) == (resource, 8)
    assert found.evidence


@pytest.mark.parametrize(
    ("tpot_s", "prompt_tokens", "resource"),
    [(0.035, 32_037.0, "prefill"), (0.011, 32_037.0, "queue"), (0.035, 500.0, "queue")],
)
def test_steady_number_of_requests_is_no_limit_where_the_server_reads_prompts(
    tpot_s: float, prompt_tokens: float, resource: str
) -> None:
    server = {
        "requests_running_mean": 11.2, "requests_running_max": 13.0, "requests_waiting_mean": 199.9,
        "prompt_tokens_per_s": prompt_tokens, "generation_tokens_per_s": 254.0, "kv_usage_ratio_max": 0.15,
    }  # fmt: skip
    full = step(40, "not_met", tpot_p50_s=tpot_s, server=server, over={"ttft": 9})
    assert limiting_resource([step(5), full]).resource == resource


def test_limiting_resource_of_our_own_client_is_not_the_servers() -> None:
    late = step(8, "client", why="our own client sends late: the median delay is 40 ms", server=QUIET, over={"ttft": 9})
    found = limiting_resource([step(1), late])
    assert found.resource == "client"
    assert found.evidence == ("our own client sends late: the median delay is 40 ms",)


def test_limiting_resource_is_unknown_where_nothing_failed() -> None:
    assert limiting_resource([step(1), step(2)]).resource == "unknown"


def test_saturation_needs_an_overloaded_step() -> None:
    assert saturation([step(1), step(2)], "rate") == Saturation(
        reached=False, requests_per_s=2, output_tokens_per_s=20, load=2
    )
    full = step(8, "not_met", requests_per_s=3.0, output_tokens_per_s=30.0, queue_grows=True)
    assert saturation([step(1), step(2), full], "rate").reached
    assert saturation([step(1), step(2), full], "rate").requests_per_s == 3.0
    assert not saturation([], "rate").reached


@pytest.mark.parametrize(
    ("offered", "completed", "e2e_p50_s", "reached"),
    [
        (36, 24, 0.5, True),
        (36, 33, 0.5, False),  # what chance explains
        (36, 24, 9.0, False),  # as many are in flight while it keeps up
        (8, 5, 0.1, False),
    ],
)
def test_saturation_is_where_less_is_served_than_was_due(
    offered: int, completed: int, e2e_p50_s: float, reached: bool
) -> None:
    more: Any = {"e2e_p50_s": e2e_p50_s, "offered": offered, "completed": completed, "completing_s": 12.0}
    found = saturation([step(1, e2e_p50_s=e2e_p50_s), step(3, requests_per_s=completed / 12, **more)], "rate")
    assert found.reached is reached
    assert found.offered_per_s == (pytest.approx(offered / 12, rel=0.01) if completed > 12 else None)


def test_saturation_of_users_is_where_more_of_them_complete_no_more() -> None:
    steps = [step(13.4, output_tokens_per_s=231.0), step(16, output_tokens_per_s=235.0)]
    assert saturation(steps, "concurrency").reached
    assert not saturation(steps, "rate").reached, "chance: no queue grew"


def test_knee_is_where_answers_take_twice_as_long() -> None:
    steps = [step(1), step(2, e2e_p50_s=1.5), step(4, e2e_p50_s=2.1)]
    assert knee(steps, "rate") == Knee(load=2, next=4)
    assert knee(steps[:2], "rate") is None
    assert knee([step(1), step(2, queue_grows=True)], "rate") == Knee(load=1, next=2)
