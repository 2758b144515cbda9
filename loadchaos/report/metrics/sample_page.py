"""Samples of a page of metrics, as the families of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.samples import Exemplar

from loadchaos.analysis.figures.live import BucketHistogram
from loadchaos.report.metrics.metric_table import CAPACITY, METRICS, SERVER, server_sample


class SamplePage:
    """Samples by family, each with the label of the run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._families: dict[str, Any] = {}

    def add(self, name: str, labels: Sequence[str], value: float) -> None:
        self._family(name).add_metric([self._run, *labels], value)

    def histogram(self, name: str, labels: Sequence[str], parts: Sequence[BucketHistogram]) -> None:
        """Add a histogram: the sum of its parts."""
        self._family(name).add_metric([self._run, *labels], _cumulative(parts), sum(p.sum_s for p in parts))

    def summary(self, name: str, labels: Sequence[str], count: int, total: float) -> None:
        self._family(name).add_metric([self._run, *labels], count, total)

    def server(self, name: str, labels: Sequence[str], value: float) -> None:
        """Add a sample of a server metric. A name outside the table gets a general help text."""
        full = server_sample(name)
        if full not in self._families:
            text = SERVER.get(name, "Server metric, with one name for all dialects and versions")
            make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            self._families[full] = make(full, text, labels=["run", "replica", "engine"])
        self._families[full].add_metric([self._run, *labels], value)

    def families(self) -> list[Metric]:
        """All families with samples: the table first, then the server."""
        known = [name for name in _MAKERS if name in self._families]
        return [self._families[n] for n in [*known, *(n for n in self._families if n not in _MAKERS)]]

    def _family(self, name: str) -> Any:
        if name not in self._families:
            make, spec = _MAKERS[name]
            self._families[name] = make(name, spec.help, labels=["run", *spec.labels])
        return self._families[name]


_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}  # fmt: skip
_MAKERS = {s.name: (_KINDS[s.kind], s) for s in (*METRICS, *CAPACITY)}


def _cumulative(parts: Sequence[BucketHistogram]) -> list[Any]:
    """Cumulative Prometheus buckets, with the newest request id as exemplar."""
    total, buckets = 0, list[Any]()
    bounds = [str(float(b)) for b in parts[0].bounds] + ["+Inf"]
    for i, bound in enumerate(bounds):
        total += sum(p.counts[i] for p in parts)
        found = next((p.exemplars[i] for p in parts if i in p.exemplars), None)
        exemplar = Exemplar({"request_id": found[0]}, found[1]) if found else None
        buckets.append((bound, total, exemplar))
    return buckets
