"""Latency distributions and prompt lengths of a run, by traffic. All kinds of traffic share one logarithmic latency
axis, so that they can be compared by eye. Bar heights count within one kind of traffic. Bins join log-linear buckets of
0.8 % (core/histogram.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.core.histogram import LogHistogram, bucket_middle
from loadchaos.core.latency_percentiles import REPORTED_QUANTILES, quantile_label
from loadchaos.core.units import NS_PER_S
from loadchaos.report.formatting import clean, duration, plural, tick_duration

FEWEST_BINS, MOST_BINS = 20, 80
MOST = 24
"""Kinds of traffic drawn."""
_TITLES = {
    "ttft": "Time to first token",
    "itl": "Gaps between chunks",
    "e2e": "End-to-end time",
}


@dataclass(frozen=True)
class DistributionRow:
    """Shape of one kind of traffic on a plane of 1000 x 100, and its quantile marks in per cent."""

    traffic: str
    path: str
    marks: tuple[tuple[float, str], ...]
    text: str


@dataclass(frozen=True)
class Distribution:
    """One kind of latency: a row per kind of traffic on one axis. Ticks are (per cent, label)."""

    title: str
    rows: tuple[DistributionRow, ...]
    ticks: tuple[tuple[float, str], ...]


def distributions(answers: AnswerFigures) -> list[Distribution]:
    return [d for kind in _TITLES if (d := _distribution(answers, kind)) is not None]


def _distribution(answers: AnswerFigures, kind: str) -> Distribution | None:
    found = {t: k[kind] for t, k in list(answers.latency.items())[:MOST] if k[kind].n}
    if not found:
        return None
    values = [max(bucket_middle(i), 1.0) for h in found.values() for i in (min(h.counts), max(h.counts))]
    # As many bins as there are answers to fill them.
    bins = min(MOST_BINS, max(FEWEST_BINS, int(4 * math.sqrt(max(h.n for h in found.values())))))
    # Half a bin of margin on both sides, and a factor of two at least: a single value is a bar, not the whole width.
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max((high - low) / bins, (math.log10(2) - (high - low)) / 2, 0.01)
    low, high = low - margin, high + margin

    def place(ns: float) -> float:
        return (math.log10(max(ns, 1.0)) - low) / (high - low)

    rows = tuple(_row(clean(t, 40), h, place, bins) for t, h in found.items())
    return Distribution(_TITLES[kind], rows, tuple(log_ticks(low, high)))


def _row(traffic: str, hist: LogHistogram, place: Callable[[float], float], n_bins: int) -> DistributionRow:
    bins = [0] * n_bins
    for index, count in hist.counts.items():
        bins[min(n_bins - 1, max(0, int(place(bucket_middle(index)) * n_bins)))] += count
    top, wide = max(bins), 1000 / n_bins
    # A bin with a single answer among thousands still is a line one can see.
    bars = (f"M{_n(i * wide)},100v{_n(-max(3.0, 100 * n / top))}h{_n(wide)}V100z" for i, n in enumerate(bins) if n)
    quantiles = [(q, hist.quantile(q)) for q in REPORTED_QUANTILES.values()]
    marks = tuple(
        (round(100 * place(v), 2), f"{quantile_label(q)} {duration(v / NS_PER_S)}")
        for q, v in quantiles
        if v is not None
    )
    return DistributionRow(
        traffic, "".join(bars), marks, ", ".join([*(m[1] for m in marks), plural(int(hist.n), "sample")])
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def log_ticks(low: float, high: float, apart: float = 11) -> list[tuple[float, str]]:
    """Ticks (per cent, label) at round latencies from 10**low to 10**high ns, at least `apart` per cent from each other."""
    decades = high - low
    steps = (1,) if decades > 3 else (1, 2, 5) if decades > 0.9 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    exponents = range(math.floor(low), math.ceil(high) + 1)
    ticks: list[tuple[float, str]] = []
    for value in (s * 10.0**e for e in exponents for s in steps):
        at = round(100 * (math.log10(value) - low) / (high - low), 2)
        # Labels need space: on a phone a tenth of the width.
        if 0 <= at <= 100 and (not ticks or at - ticks[-1][0] > apart):
            ticks.append((at, tick_duration(value / NS_PER_S)))
    return ticks
