import math

import pytest

from loadchaos.core.histogram import LogHistogram
from loadchaos.core.latency_percentiles import FEWEST_SAMPLES, STATISTICS
from loadchaos.core.stats import quantile_ranks


def below(n: int, q: float, k: int) -> float:
    """The exact chance that at most k of n samples are below the quantile."""
    return math.fsum(math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(k + 1))


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 2, 5, 20, 59, 298, 299])
def test_quantile_ranks_are_the_tightest_with_95_percent_each(n: int, q: float) -> None:
    low, high = quantile_ranks(n, q)
    assert low == 0 or below(n, q, low - 1) <= 0.05
    assert below(n, q, low) > 0.05
    assert high == n + 1 or below(n, q, high - 1) >= 0.95
    assert high == 0 or below(n, q, high - 2) < 0.95


def test_quantile_ranks_are_continuous_where_they_become_approximate() -> None:
    n = 40_000  # the variance of the median is 10,000 here
    (low, high), (low_2, high_2) = quantile_ranks(n, 0.5), quantile_ranks(n + 2, 0.5)
    assert abs(low_2 - low) <= 2
    assert abs(high_2 - high) <= 2


@pytest.mark.parametrize(("name", "n"), FEWEST_SAMPLES.items())
def test_fewest_samples_have_an_upper_bound(name: str, n: int) -> None:
    q = STATISTICS[name]
    assert q is None or quantile_ranks(n, q)[1] <= n


def test_histogram_interval_is_open_above_for_a_small_sample() -> None:
    histogram = LogHistogram()
    assert histogram.quantile_interval(0.99) is None
    histogram.add(100.0, 2)
    interval = histogram.quantile_interval(0.99)
    assert interval is not None
    assert interval[0] == pytest.approx(100, rel=0.01)
    assert interval[1] == math.inf
