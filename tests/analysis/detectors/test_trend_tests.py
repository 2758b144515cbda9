import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.analysis.detectors.trend_tests import Samples, mann_kendall_z, rising_trend, slope

Curve = Callable[[float, random.Random], float]
N = 120


def points(curve: Curve, seed: int = 0) -> list[tuple[float, float]]:
    """Two minutes, a point a second; a curve is a function of 0..1."""
    rng = random.Random(seed)
    return [(float(t), curve(t / N, rng)) for t in range(N)]


def test_rising_trend_finds_a_line_under_noise() -> None:
    trend = rising_trend(points(lambda x, r: 100 + 100 * x + r.gauss(0, 10)), at_least=10, by=0.5)
    assert trend is not None
    assert trend.end - trend.begin == pytest.approx(100, rel=0.15)
    assert trend.per_s == pytest.approx(100 / N, rel=0.15)


HEALTHY: dict[str, Curve] = {
    "flat": lambda _, r: 100 + r.gauss(0, 5),
    "very noisy": lambda _, r: 100 * math.exp(r.gauss(0, 1)),
    "warms up and levels off": lambda x, r: 200 - 100 * math.exp(-8 * x) + r.gauss(0, 3),
    "grows like a logarithm": lambda x, r: 100 + 50 * math.log(1 + 60 * x) + r.gauss(0, 3),
    "jumps to another level": lambda x, r: (100 if x < 0.5 else 220) + r.gauss(0, 3),
    "falls": lambda x, r: 200 - 100 * x + r.gauss(0, 3),
    "comes and goes": lambda x, r: 150 + 50 * math.sin(20 * x) + r.gauss(0, 3),
    "grows a little": lambda x, r: 100 + 5 * x + r.gauss(0, 1),
    "outliers at the end": lambda x, r: 100 + r.gauss(0, 3) + (500 if x > 0.95 else 0),
    "stands quite still": lambda _, __: 100.0,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_rising_trend_is_never_found_in_healthy_curves(name: str) -> None:
    found = [seed for seed in range(60) if rising_trend(points(HEALTHY[name], seed), at_least=10, by=0.3) is not None]
    assert found == []


def test_rising_trend_needs_twenty_points() -> None:
    assert rising_trend([(float(t), float(t)) for t in range(10)], at_least=0, by=0) is None
    assert slope([]) == slope([(1.0, 5.0)]) == mann_kendall_z([1.0]) == 0.0


def test_slope_ignores_outliers() -> None:
    wild = [(t, 1e9 if t % 4 == 0 and t else 2.0 * t) for t in map(float, range(100))]
    assert slope(wild) == pytest.approx(2.0, rel=0.5)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e9)), max_size=600))
def test_samples_are_bounded_and_in_order(values: list[tuple[float, float]]) -> None:
    samples = Samples()
    for at_s, value in values:
        samples.add(at_s, value)
    found = samples.points()
    assert len(found) <= 240
    assert [t for t, _ in found] == sorted(t for t, _ in found)
    if values:
        assert min(v for _, v in values) <= min(v for _, v in found)
        assert max(v for _, v in found) <= max(v for _, v in values)


def test_samples_of_a_long_history_keep_the_slope() -> None:
    samples = Samples()
    for second in range(20_000):
        samples.add(float(second), 3.0 * second)
    assert slope(samples.points()) == pytest.approx(3.0, rel=0.02)
