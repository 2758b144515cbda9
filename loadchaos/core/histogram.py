"""Histogram of latencies in log-linear buckets, and its percentiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from loadchaos.core.latency_percentiles import STATISTICS
from loadchaos.core.stats import quantile_ranks

PER_OCTAVE = 64
"""Buckets for each factor of two: a value lies within 0.8 % of its bucket's middle."""
RESOLUTION = 1 / PER_OCTAVE
"""Width of a bucket, as a share of its values, at most."""
_TWO_OCTAVES = 2 * PER_OCTAVE
_FIRST = _TWO_OCTAVES - 1


def bucket(value_ns: float) -> int:
    """Compute the bucket of a value; all values below 1 share bucket 0."""
    if value_ns < 1:
        return 0
    mantissa, exponent = math.frexp(value_ns)  # value = mantissa * 2**exponent, 0.5 <= mantissa < 1
    return exponent * PER_OCTAVE + int(mantissa * _TWO_OCTAVES) - _FIRST


@functools.lru_cache(maxsize=8192)
def bucket_middle(index: int) -> float:
    """Compute the value that a bucket stands for."""
    if index <= 0:
        return 0.0
    octave, step = divmod(index - 1, PER_OCTAVE)
    return float(2**octave * (1 + (step + 0.5) / PER_OCTAVE))


@functools.lru_cache(maxsize=8192)
def _bucket_of(key: int | str) -> tuple[int, float]:
    index = int(key)
    return index, bucket_middle(index)


class LogHistogram:
    """Log-linear histogram: error at most 0.8 %, merges exactly."""

    __slots__ = ("counts", "n", "total")

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = {}
        self.n, self.total = 0, 0.0
        if counts:
            self.merge(counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogHistogram) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, value: float, times: int = 1) -> None:
        counts = self.counts
        if value < 1:
            i = 0
        else:  # as `bucket`, without its call
            mantissa, exponent = math.frexp(value)
            i = exponent * PER_OCTAVE + int(mantissa * _TWO_OCTAVES) - _FIRST
        counts[i] = counts.get(i, 0) + times
        self.n += times
        self.total += value * times

    def merge(self, other: LogHistogram | Mapping[int, int]) -> None:
        """Add another histogram or its counts; keys may be text, as in JSON. The mean of counts is that of the middles
        of their buckets.
        """
        counts = self.counts
        if isinstance(other, LogHistogram):
            for i, c in other.counts.items():
                counts[i] = counts.get(i, 0) + c
            self.n += other.n
            self.total += other.total
            return
        n, total = self.n, self.total
        for key, c in other.items():
            i, middle = _bucket_of(key)
            counts[i] = counts.get(i, 0) + c
            n += c
            total += middle * c
        self.n, self.total = n, total

    def remove(self, other: LogHistogram) -> None:
        """Take away the values of another histogram, all of which this one has."""
        for i, c in other.counts.items():
            if left := self.counts[i] - c:
                self.counts[i] = left
            else:
                del self.counts[i]
        self.n -= other.n
        self.total -= other.total

    def quantile(self, q: float) -> float | None:
        """Compute the nearest-rank quantile q (0 to 1); None when empty."""
        if self.n == 0:
            return None
        rank = max(1, math.ceil(q * self.n))
        seen = 0
        for i in sorted(self.counts):
            seen += self.counts[i]
            if seen >= rank:
                return bucket_middle(i)
        raise AssertionError("counts do not add up to n")

    def statistic(self, name: str) -> float | None:
        """Compute a statistic by its name, such as `p99` or `max`. None when empty. The maximum is the middle of its
        bucket.
        """
        if name == "mean":
            return self.mean()
        quantile = STATISTICS[name]
        return self.quantile(1.0 if quantile is None else quantile)

    def quantile_interval(self, q: float) -> tuple[float, float] | None:
        """Compute the 90 % interval of quantile q by order statistics. Each end alone holds with a confidence of 95 %.
        The upper one is infinite where the sample is too small for it, the lower one 0. None when empty.
        """
        if self.n == 0:
            return None
        low, high = quantile_ranks(self.n, q)
        return self._at_rank(low) if low else 0.0, self._at_rank(high) if high <= self.n else math.inf

    def _at_rank(self, rank: int) -> float:
        found = self.quantile((rank - 0.5) / self.n)
        assert found is not None
        return found

    def mean(self) -> float | None:
        return self.total / self.n if self.n else None
