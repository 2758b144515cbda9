"""Quantiles, confidence intervals, sequential tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, variance

_MOST_EXACT_VARIANCE = 10_000
"""A binomial with a larger variance is taken as normal: its ranks are then wrong by less than 1 in 1000."""

_CONFIDENCE = 0.95


def quantile(values: Iterable[float], q: float) -> float | None:
    """Compute the nearest-rank quantile of exact values; None without values."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(q * len(ordered))) - 1] if ordered else None


def quantile_ranks(n: int, q: float) -> tuple[int, int]:
    """Compute the ranks (1 to n) of a 90 % interval of quantile q. The number of samples below the quantile is
    binomial. Rank 0 or n + 1: the sample has no such bound.
    """
    return _binomial_quantile(n, q, 0.05), _binomial_quantile(n, q, 0.95) + 1


def _binomial_quantile(n: int, p: float, level: float) -> int:
    """Compute the least k with P(X <= k) >= level for a binomial X."""
    if n * p * (1 - p) > _MOST_EXACT_VARIANCE:
        z = 1.6448536 if level > 0.5 else -1.6448536
        return min(n, max(0, math.ceil(n * p + z * math.sqrt(n * p * (1 - p)) - 0.5)))
    if p > 0.5:  # count from the end with fewer terms
        return n - 1 - _last_below(n, 1 - p, 1 - level)
    return _last_below(n, p, level) + 1


def _last_below(n: int, p: float, level: float) -> int:
    """Compute the largest k with P(X <= k) <= level for a binomial X, or -1."""
    total = 0.0
    for k in range(n + 1):
        chances = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        total += math.exp(chances + k * math.log(p) + (n - k) * math.log1p(-p))
        if total > level:
            return k - 1
    return n


def upper_bound_at_zero(exposures: int) -> float | None:
    """Compute the upper bound of a rate after 0 events in n exposures, with 95 % confidence. Exact and one-sided. None
    without exposures.
    """
    return 1 - (1 - _CONFIDENCE) ** (1 / exposures) if exposures > 0 else None


def wilson(successes: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """Compute the Wilson score interval of a share; (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def student_t(confidence: float, df: int) -> float:
    """Compute the two-sided quantile of Student's t: P(|T| <= t) = confidence. Inverts the closed sums for whole degrees
    of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, df) < confidence else (low, middle)
    return math.sqrt(df) * math.tan(low)


def _share_within(angle: float, df: int) -> float:
    """Compute P(|T| <= sqrt(df) tan(angle))."""
    cosine, odd = math.cos(angle), df % 2
    term = cosine if odd else 1.0
    total = term if df > 1 else 0.0
    for i in range(odd + 2, df - 1, 2):
        term *= cosine * cosine * (i - 1) / i
        total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def mean_interval(
    values: Sequence[float], confidence: float = _CONFIDENCE, resolution: float = 0.0
) -> tuple[float, float | None]:
    """Compute the mean of independent values, and the half width of its interval (Student's t), None for one value.
    `resolution`: step between values, as a share of them.
    """
    if len(values) < 2:
        return fmean(values), None
    half = student_t(confidence, len(values) - 1) * math.sqrt(_variance(values, resolution) / len(values))
    return fmean(values), half


def _variance(values: Sequence[float], resolution: float) -> float:
    """Compute the variance; values that fall into one step may be anywhere in it."""
    return max(variance(values), (resolution * fmean(values)) ** 2 / 12)


def welch(
    a: Sequence[float], b: Sequence[float], confidence: float = _CONFIDENCE, resolution: float = 0.0
) -> tuple[float, float]:
    """Compute the interval of mean(b) - mean(a) of at least two independent values each, whose variances may differ
    (Welch 1947). Degrees of freedom are rounded down, so that the interval is not too narrow. `resolution`: as above.
    """
    difference = fmean(b) - fmean(a)
    parts = _variance(a, resolution) / len(a), _variance(b, resolution) / len(b)
    if not (total := sum(parts)):
        return difference, difference
    df = total**2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    half = student_t(confidence, max(1, math.floor(df))) * math.sqrt(total)
    return difference - half, difference + half


def chance_of_no_success(tries: int, successes_before: int, tries_before: int) -> float:
    """Compute the chance that `tries` more tries all fail if p is unchanged. It is the beta-binomial prediction with a
    uniform prior: the interval of p is taken into account.
    """
    failures = tries_before - successes_before
    return math.prod((failures + 1 + i) / (tries_before + 2 + i) for i in range(tries))


class SequentialTest:
    """Wald's sequential test of p >= `high` against p <= `low`. `decision` is True for the first, False for the second,
    None while more tries are needed. `wrong` bounds both errors; `wrong_true`, where it is given, that of the decision
    True.
    """

    __slots__ = ("_failure", "_false_limit", "_success", "_sum", "_true_limit", "failures", "successes")

    def __init__(self, high: float, low: float, wrong: float = 0.05, wrong_true: float | None = None) -> None:
        lucky = wrong if wrong_true is None else wrong_true
        if not 0 < low < high < 1 or not 0 < wrong < 0.5 or not 0 < lucky < 0.5:
            raise ValueError(
                f"0 < low < high < 1 and errors between 0 and 0.5 were expected (got {low}, {high}, {wrong}, {lucky})"
            )
        self._success, self._failure = math.log(high / low), math.log((1 - high) / (1 - low))
        self._true_limit, self._false_limit = math.log((1 - wrong) / lucky), math.log((1 - lucky) / wrong)
        self._sum = 0.0
        self.successes = self.failures = 0

    def add(self, success: bool) -> None:
        self.successes += success
        self.failures += not success
        self._sum += self._success if success else self._failure

    @property
    def decision(self) -> bool | None:
        return None if -self._false_limit < self._sum < self._true_limit else self._sum > 0
