"""Trend tests: Theil-Sen slope, Mann-Kendall test, plateau test.

Pure arithmetic on (seconds, value) pairs. A warm-up that levels off, a jump to a new level and noise are no trend.

pymannkendall is not used: it needs scipy.stats, whose import takes 1.2 s, and what is needed of it is the five lines
of `mann_kendall_z`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

Point = tuple[float, float]

_MOST_POINTS = 240
_IN_A_BUCKET = 15
FEWEST_POINTS = 20
"""Points that a trend needs."""
_MOST_AUTOCORRELATION = 0.98
_CERTAIN_Z = 4.0  # standard deviations of Mann-Kendall's S: 1 in 30,000 by chance


@dataclass
class Samples:
    """Medians of values over time, in at most 240 buckets of equal width. The width doubles when they are full."""

    width_s: float = 1.0
    _buckets: dict[int, list[float]] = field(default_factory=dict)

    def add(self, at_s: float, value: float) -> None:
        """Fold one value; a bucket keeps 15, which is enough for its median."""
        bucket = self._buckets.setdefault(int(at_s // self.width_s), [])
        if len(bucket) < _IN_A_BUCKET:
            bucket.append(value)
        if len(self._buckets) > _MOST_POINTS:
            self._halve()

    def points(self) -> list[Point]:
        return [((n + 0.5) * self.width_s, median(values)) for n, values in sorted(self._buckets.items())]

    def _halve(self) -> None:
        old, self._buckets = self._buckets, {}
        self.width_s *= 2
        for n, values in sorted(old.items()):
            merged = self._buckets.setdefault(n // 2, [])
            merged += values[: _IN_A_BUCKET // 2 + 1 if merged == [] else _IN_A_BUCKET - len(merged)]


@dataclass(frozen=True)
class RisingTrend:
    """A rise of the fitted line from `begin` to `end`."""

    begin: float
    end: float
    span_s: float

    @property
    def per_s(self) -> float:
        return (self.end - self.begin) / self.span_s if self.span_s else 0.0


def slope(points: Sequence[Point]) -> float:
    """Theil-Sen: the median of the slopes of all pairs. 0 for fewer than two points."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :] if b[0] != a[0]]
    return median(slopes) if slopes else 0.0


def mann_kendall_z(values: Sequence[float]) -> float:
    """Mann-Kendall's z of a series. Standard deviations by which rises outnumber falls among all pairs."""
    n = len(values)
    if n < 3:
        return 0.0
    s = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    return s / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def autocorrelation_factor(points: Sequence[Point]) -> float:
    """Autocorrelation factor of the deviation of Mann-Kendall's S; 1 without. The residual of the trend is taken for an
    AR(1): sqrt((1 + r) / (1 - r)), r its first autocorrelation, corrected for its bias in a short series (von Storch
    1995; Kendall 1954). A random walk is nearly all autocorrelation, and no trend.
    """
    n = len(points)
    if n < FEWEST_POINTS:
        return 1.0
    rate = slope(points)
    rest = [v - rate * t for t, v in points]
    middle = sum(rest) / n
    around = [v - middle for v in rest]
    whole = sum(v * v for v in around)
    if whole <= 0:
        return 1.0
    r = sum(a * b for a, b in pairwise(around)) / whole
    r = min(max((n * r + 1) / (n - 4), 0.0), _MOST_AUTOCORRELATION)
    return math.sqrt((1 + r) / (1 - r))


def levels_off(points: Sequence[Point], *, z: float) -> bool:
    """True when growth slows down. Less its trend, the first half rises and the second falls, both by `z`."""
    rate = slope(points)
    rest = [v - rate * t for t, v in points]
    half = len(rest) // 2
    return mann_kendall_z(rest[:half]) > z and mann_kendall_z(rest[half:]) < -z


def rising_trend(points: Sequence[Point], *, at_least: float, by: float) -> RisingTrend | None:
    """The trend of a series that rises by enough and still rises at the end. Enough is `at_least`, and the part `by` of
    where it began. It still rises where the second half has at least a third of the whole rise (a line has a half of
    it, a logarithm a quarter), and where no two neighbours hold half of it (a jump).
    """
    if len(points) < FEWEST_POINTS or mann_kendall_z([v for _, v in points]) < _CERTAIN_Z:
        return None
    rate, span_s = slope(points), points[-1][0] - points[0][0]
    begin = median(v - rate * (t - points[0][0]) for t, v in points)
    rise = rate * span_s
    if rise < at_least or rise < by * max(begin, 0.0):
        return None
    half, edge = points[len(points) // 2 :], max(2, len(points) // 10)
    # A curve that bends rises more between its edges than its median slope says.
    whole = max(rise, median(v for _, v in points[-edge:]) - median(v for _, v in points[:edge]))
    if slope(half) * (half[-1][0] - half[0][0]) < whole / 3 or mann_kendall_z([v for _, v in half]) < _CERTAIN_Z / 2:
        return None
    smooth = [median(v for _, v in points[max(0, i - 1) : i + 2]) for i in range(len(points))]
    if max(b - a for a, b in pairwise(smooth)) > rise / 2:
        return None
    return RisingTrend(begin, begin + rise, span_s)
