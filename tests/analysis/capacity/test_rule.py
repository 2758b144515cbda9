import random

import pytest

from loadchaos.analysis.capacity.rule import (
    GROUPS,
    LOOK_Z,
    LOOKS,
    cannot_recover,
    decide,
    goodput_interval,
    least_requests,
    overdispersion,
    queue_growth,
)


def even(bad: int, n: int) -> list[tuple[int, int]]:
    """Bad requests spread evenly over ten groups."""
    return [(bad // GROUPS + (i < bad % GROUPS), n // GROUPS) for i in range(GROUPS)]


@pytest.mark.parametrize(
    ("bad", "n", "goal", "status"),
    [
        (0, 400, 0.99, "met"),
        (0, 380, 0.99, "undecided"),  # the share is 100 %, and proves nothing
        (1, 400, 0.99, "undecided"),
        (6, 400, 0.99, "undecided"),
        (13, 400, 0.99, "not_met"),
        (0, 70, 0.95, "undecided"),
        (0, 80, 0.95, "met"),
        (40, 80, 0.95, "not_met"),
    ],
)
def test_decide_needs_the_whole_interval_on_one_side_of_the_goal(bad: int, n: int, goal: float, status: str) -> None:
    assert decide(goodput_interval(even(bad, n), LOOK_Z), goal) == status


@pytest.mark.parametrize("goal", [0.9, 0.95, 0.99, 0.999])
def test_least_requests_is_the_smallest_sample_that_proves_a_goal(goal: float) -> None:
    n = least_requests(goal)
    assert decide(goodput_interval([(0, n)], LOOK_Z), goal) == "met"
    assert decide(goodput_interval([(0, n - 2)], LOOK_Z), goal) == "undecided"


def test_three_looks_err_in_at_most_five_per_cent_at_the_goal() -> None:
    """A load whose goodput is exactly the goal may be called met, or not met, in at most one of twenty steps each."""
    rng, wrong, trials = random.Random(7), {"met": 0, "not_met": 0, "undecided": 0}, 1000
    for _ in range(trials):
        groups = [(0, 0)] * GROUPS
        for look in range(LOOKS):
            size = 40 * 2 ** max(0, look - 1)  # 400, 800 and 1,600 requests in all
            more = [(sum(rng.random() >= 0.95 for _ in range(size)), size) for _ in range(GROUPS)]
            groups = [(a + c, b + d) for (a, b), (c, d) in zip(groups, more, strict=True)]
            status = decide(goodput_interval(groups, LOOK_Z), 0.95)
            if status != "undecided":
                break
        wrong[status] += 1
    assert wrong["met"] <= 0.05 * trials
    assert wrong["not_met"] <= 0.06 * trials  # 5 % and three standard deviations would be 7 %


def test_overdispersion_of_failures_that_come_together() -> None:
    spread, together = even(20, 1000), [(20, 100)] + [(0, 100)] * 9
    assert overdispersion(spread) < 1.5
    assert overdispersion(together) > 10
    assert goodput_interval(together, LOOK_Z).high > goodput_interval(spread, LOOK_Z).high
    assert decide(goodput_interval(even(40, 1000), LOOK_Z), 0.985) == "not_met"
    assert decide(goodput_interval([(40, 100)] + [(0, 100)] * 9, LOOK_Z), 0.985) == "undecided"


@pytest.mark.parametrize("groups", [[], [(0, 0)] * 10, [(0, 50)] * 10, [(50, 50)] * 10, [(5, 10)]])
def test_overdispersion_is_one_where_nothing_varies(groups: list[tuple[int, int]]) -> None:
    assert overdispersion(groups) == 1.0


def test_cannot_recover_counts_the_rest_as_good() -> None:
    assert not cannot_recover(10, 1000, 0.99)
    assert cannot_recover(30, 1000, 0.99)
    assert not cannot_recover(5, 0, 0.99)


def test_queue_growth_of_an_overloaded_server_is_sure() -> None:
    growth = queue_growth([10.0 + 8 * i for i in range(GROUPS)], arrivals=720)
    assert growth.sure
    assert growth.share == pytest.approx(0.1)


@pytest.mark.parametrize(
    "in_flight",
    [
        [30, 33, 29, 31, 30, 34, 28, 30, 33, 31],  # steady
        [10, 40, 60, 72, 80, 85, 88, 90, 91, 92],  # longer answers than the warm-up: ever slower
        [90, 80, 70, 60, 50, 40, 30, 20, 10, 0],  # it recovers
        [4, 4, 4, 5, 5, 5, 6, 6, 6, 7],  # a few requests
    ],
)
def test_queue_growth_of_a_healthy_server_is_not_sure(in_flight: list[float]) -> None:
    assert not queue_growth(in_flight, arrivals=300).sure


def test_queue_growth_by_chance_is_rare() -> None:
    rng = random.Random(3)
    found = [queue_growth([rng.gauss(50, 7) for _ in range(GROUPS)], arrivals=500) for _ in range(2000)]
    assert not any(g.sure for g in found)
    assert sum(g.possible for g in found) < 0.08 * len(found)


def test_queue_growth_needs_ten_groups() -> None:
    assert not queue_growth([1.0, 50.0, 100.0], arrivals=100).possible
