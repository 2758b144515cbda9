import random

import pytest

from bench.rare_failures import expected_tries
from loadchaos.core.stats import SequentialTest, chance_of_no_success, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_has_newcombes_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_chance_of_no_success_follows_laplaces_rule_of_succession() -> None:
    assert chance_of_no_success(1, 4, 5) == pytest.approx(2 / 7)
    assert chance_of_no_success(3, 2, 2) == pytest.approx(1 * 2 * 3 / (4 * 5 * 6))
    assert chance_of_no_success(0, 1, 1) == 1.0


@pytest.mark.parametrize(
    ("results", "decisions"),
    [
        ([False] * 5, [None, None, None, None, False]),
        ([True, True], [None, True]),
        ([True, False, True], [None, None, True]),
    ],
)
def test_sequential_test_decides_at_walds_limits(results: list[bool], decisions: list[bool | None]) -> None:
    test, found = SequentialTest(0.5, 0.05), []
    for result in results:
        test.add(result)
        found.append(test.decision)
    assert found == decisions


@pytest.mark.parametrize(("p", "expected"), [(0.5, True), (0.05, False), (0.8, True), (0.01, False)])
def test_sequential_test_is_wrong_at_most_as_often_as_it_says(p: float, expected: bool) -> None:
    wrong = tries = 0
    for seed in range(2000):
        rng, test = random.Random(seed), SequentialTest(0.5, 0.05)
        while test.decision is None:
            test.add(success=rng.random() < p)
        wrong += test.decision is not expected
        tries += test.successes + test.failures
    assert wrong / 2000 <= 0.06
    if p in (0.5, 0.05):  # Wald's identity leaves out the excess over the limit
        least = expected_tries(SequentialTest(0.5, 0.05), p)
        assert least <= tries / 2000 <= least + 2


@pytest.mark.parametrize(("high", "low"), [(0.5, 0.5), (1.0, 0.5), (0.5, 0.0), (0.2, 0.3)])
def test_sequential_test_refuses_limits_that_mean_nothing(high: float, low: float) -> None:
    with pytest.raises(ValueError, match="were expected"):
        SequentialTest(high, low)
