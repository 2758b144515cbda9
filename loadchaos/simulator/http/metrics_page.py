"""Page of /metrics. The library that the real servers write it with writes this one, too."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_PROCESS = ProcessCollector(registry=None)

Labels = Mapping[str, str]


class Histogram:
    """Counts by upper bound, cumulated only when written. That of prometheus-client locks twice for each token."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = (*bounds, float("inf"))
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class MetricsPage:
    """One answer of /metrics, built anew for each scrape. It begins with the figures of the process."""

    def __init__(self) -> None:
        self._families: list[Metric] = [*_PROCESS.collect()]

    def family(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Add a counter or gauge with all its samples. `name` is as on the page (counters with _total)."""
        metric = Metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)
        for labels, value in samples:
            metric.add_sample(name, dict(labels), value)
        self._families.append(metric)

    def histogram(self, name: str, text: str, labels: Labels, histogram: Histogram) -> None:
        bounds = map(floatToGoString, histogram.bounds)
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        metric = HistogramMetricFamily(name, text, labels=list(labels))
        metric.add_metric(list(labels.values()), buckets, histogram.sum)
        self._families.append(metric)

    def collect(self) -> Iterable[Metric]:
        return self._families

    def render(self) -> bytes:
        return generate_latest(self)
