import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.core.histogram import LogHistogram, bucket, bucket_middle
from loadchaos.core.stats import mean_interval, quantile, student_t, welch

VALUES = st.lists(st.integers(1, 10**12), min_size=1, max_size=60)


def histogram_of(values: list[int]) -> LogHistogram:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@pytest.mark.parametrize(
    ("n", "q", "rank"),
    [
        (1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (10, 0.9, 9), (10, 0.91, 10), (10, 0.99, 10), (99, 0.99, 99), (100, 0.99, 99),
        (101, 0.99, 100), (200, 0.99, 198), (300, 0.99, 297), (1000, 0.999, 999), (20, 0.95, 19), (7, 0.0, 1), (7, 1.0, 7),
    ],
)  # fmt: skip
def test_quantile_is_the_value_of_the_nearest_rank(n: int, q: float, rank: int) -> None:
    values = [1000 * i * i for i in range(1, n + 1)]  # each in a bucket of its own
    found = histogram_of(values).quantile(q)
    assert quantile(values, q) == values[rank - 1]
    assert found is not None
    assert bucket(found) == bucket(values[rank - 1])


@given(values=VALUES, q=st.floats(0, 1))
def test_quantile_of_a_histogram_is_that_of_its_values(values: list[int], q: float) -> None:
    exact, found = quantile(values, q), histogram_of(values).quantile(q)
    assert exact is not None
    assert found is not None
    assert abs(found - exact) <= 0.008 * exact + 1


@given(value=st.integers(1, 10**15))
def test_bucket_middle_is_within_a_percent_of_its_values(value: int) -> None:
    assert abs(bucket_middle(bucket(value)) - value) <= 0.008 * value + 0.5
    assert bucket(value) <= bucket(value + 1) <= bucket(value) + 64


def test_quantile_of_nothing_is_none() -> None:
    assert LogHistogram().quantile(0.5) is None
    assert LogHistogram().mean() is None
    assert quantile([], 0.5) is None


def test_mean_is_exact_for_added_values() -> None:
    assert histogram_of([1, 2, 6]).mean() == 3


@pytest.mark.parametrize(
    ("confidence", "df", "t"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776), (0.95, 30, 2.042), (0.99, 1, 63.657), (0.99, 9, 3.250)],
)
def test_student_t_is_that_of_the_tables(confidence: float, df: int, t: float) -> None:
    assert student_t(confidence, df) == pytest.approx(t, abs=0.0006)


def test_intervals_of_means_are_those_of_a_textbook() -> None:
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3, 1.9632), abs=0.0001)
    assert mean_interval([7]) == (7, None)
    low, high = welch([27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5])
    assert (low + high) / 2 == pytest.approx(2.3667, abs=0.0001)
    assert low < 0 < high
    assert welch([1, 1], [2, 2]) == (1, 1)


def test_values_that_fall_into_one_step_are_not_known_exactly() -> None:
    assert mean_interval([64, 64, 64], resolution=1 / 64) == pytest.approx((64, 0.7171), abs=0.0001)
    low, high = welch([64, 64, 64], [65, 65, 65], 0.995, 1 / 64)
    assert low < 0 < 2 < high
    assert welch([64, 64, 65], [66, 66, 67], resolution=1 / 64) == welch([64, 64, 65], [66, 66, 67])
