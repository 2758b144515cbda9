"""Figures of the steady state of a load: without its ramp-up, and without its end, when requests run out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median
from typing import NamedTuple

from loadchaos.analysis.figures.throughput import per_s
from loadchaos.analysis.verdict.model import SteadyFigures
from loadchaos.core.histogram import LogHistogram
from loadchaos.core.latency import sample_of, statistics_of
from loadchaos.core.ledger.rows import BeginRow, EndRow
from loadchaos.core.units import NS_PER_S, significant

_WIDTH_NS = 100_000_000
_MOST_POINTS = 1_200
_FULL = 0.9
"""Share of the usual requests in flight from which on the load is steady."""
_FEWEST = 30
"""Fewer requests in the window say nothing of a throughput."""
_GROWTH, _GROWTH_BY = 1.25, 2
"""Requests in flight that grow by so much from the first half of the window to the second one are not steady."""


@dataclass(slots=True)
class _Point:
    """Requests that began and ended in one time span; latencies of those that began, tokens of those that ended. Of `ok`
    requests the server `counted` the tokens of so many.
    """

    begun: int = 0
    ended: int = 0
    ok: int = 0
    counted: int = 0
    tokens: int = 0
    ttft: LogHistogram = field(default_factory=LogHistogram)
    e2e: LogHistogram = field(default_factory=LogHistogram)

    def merge(self, later: _Point) -> None:
        self.begun, self.ended = self.begun + later.begun, self.ended + later.ended
        self.ok, self.counted = self.ok + later.ok, self.counted + later.counted
        self.tokens += later.tokens
        self.ttft.merge(later.ttft)
        self.e2e.merge(later.e2e)


class SteadySpan(NamedTuple):
    """Length of the steady state, and the share of the requests that began in it."""

    seconds: float
    share: float


class _Window(NamedTuple):
    """Steady points from `first` to `last`; `flying` has the requests in flight at the end of each point of the load."""

    points: list[_Point]
    flying: list[int]
    usual: float
    first: int
    last: int

    @property
    def steady(self) -> list[_Point]:
        return self.points[self.first : self.last + 1]


class SteadyState:
    """Finds the time in which about as many requests were in flight as usual.

    It goes from the first to the last moment with nine tenths of the median number of requests in flight while requests
    were sent, without the length of one answer. A load with several phases has no such time, nor one whose requests in
    flight grow, nor one that sends all of its requests at once.
    """

    def __init__(self) -> None:
        self._points: defaultdict[int, _Point] = defaultdict(_Point)
        self._width_ns, self._begin_ns, self._phases = _WIDTH_NS, 0, set[int]()
        self._last_begun_ns = 0

    def on_begin(self, row: BeginRow) -> None:
        self._begin_ns = self._begin_ns or row["at_ns"]
        self._last_begun_ns = max(self._last_begun_ns, row["at_ns"])
        self._phases.add(row.get("phase") or 0)
        self._point(row["at_ns"]).begun += 1

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") == "missed" or not self._begin_ns:
            return
        point = self._point(row["at_ns"])
        point.ended += 1
        if row.get("outcome") == "ok":
            point.ok += 1
            point.counted += row.get("completion_tokens") is not None
            point.tokens += int(row.get("completion_tokens") or 0)
        if (sample := sample_of(row)) is None:
            return
        point = self._point(row.get("sent_ns") or row["at_ns"])
        if sample.ttft_ns is not None:
            point.ttft.add(sample.ttft_ns)
        if sample.e2e_ns is not None:
            point.e2e.add(sample.e2e_ns)

    def span(self) -> SteadySpan | None:
        """Length and share of the steady state; None of a load with several phases."""
        if (window := self._window()) is None:
            return None
        begun = sum(point.begun for point in window.points)
        return SteadySpan(self._seconds(window), sum(point.begun for point in window.steady) / begun)

    def figures(self) -> SteadyFigures | None:
        """Figures of the steady state; None where there is none."""
        if (window := self._window()) is None:
            return None
        flying, first, last = window.flying, window.first, window.last
        middle, whole = (first + last + 1) // 2, _merged(window.steady)
        if whole.begun < max(_FEWEST, window.usual) or middle == first:
            return None
        early, late = fmean(flying[first:middle]), fmean(flying[middle : last + 1])
        if late > max(_GROWTH * early, early + _GROWTH_BY):
            return None
        seconds = self._seconds(window)
        return SteadyFigures(
            from_s=round(first * self._width_ns / NS_PER_S, 3),
            seconds=seconds,
            requests=whole.ok,
            requests_per_s=per_s(whole.ok, seconds),
            output_tokens_per_s=per_s(whole.tokens, seconds) if whole.counted == whole.ok else None,
            in_flight=significant(fmean(flying[first : last + 1])),
            ttft_s=statistics_of(whole.ttft),
            e2e_s=statistics_of(whole.e2e),
        )

    def _window(self) -> _Window | None:
        if len(self._phases) != 1:
            return None
        points = [self._points.get(i) or _Point() for i in range(max(self._points) + 1)]
        flying = [max(0, n) for n in accumulate(point.begun - point.ended for point in points)]
        sending = (self._last_begun_ns - self._begin_ns) // self._width_ns + 1
        usual = median(flying[:sending])
        full = [i for i, n in enumerate(flying[:sending]) if n >= _FULL * usual]
        # Users that begin together end together: a window from their begin on would have one round of answers too few.
        answer_ns = _merged(points[full[0] : full[-1] + 1]).e2e.quantile(0.5) or 0
        return _Window(points, flying, usual, full[0] + 1 + round(answer_ns / self._width_ns), full[-1])

    def _seconds(self, window: _Window) -> float:
        return round(len(window.steady) * self._width_ns / NS_PER_S, 3)

    def _point(self, at_ns: int) -> _Point:
        index = max(0, at_ns - self._begin_ns) // self._width_ns
        while index >= _MOST_POINTS:
            old, self._points = self._points, defaultdict(_Point)
            for i in sorted(old):
                self._points[i // 2].merge(old[i])
            self._width_ns, index = 2 * self._width_ns, index // 2
        return self._points[index]


def _merged(points: Iterable[_Point]) -> _Point:
    whole = _Point()
    for point in points:
        whole.merge(point)
    return whole
