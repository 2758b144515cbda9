"""Serve /metrics of a capacity search, from its start to its end."""

from __future__ import annotations

from typing import Literal

from prometheus_client.core import Metric

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.report.metrics.capacity_metrics import capacity_families
from loadchaos.report.metrics.exporter import LAST_SCRAPE_S, Exporter, PageCollector


class SearchMetrics:
    """Serves the newest capacity.json as metrics, with the label `name`. Raises OptionError: the port is in use."""

    def __init__(self, name: str, port: int | Literal["default"]) -> None:
        self._name = name
        self._data: CapacityResult | None = None
        self._exporter = Exporter(PageCollector(self._page), port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._exporter.port}/metrics"

    def publish(self, data: CapacityResult) -> None:
        """Take a new capacity.json, with `current` while a step runs."""
        with self._exporter.lock:
            self._data = data

    def close(self) -> None:
        """Stop, after a scrape of the answer where scrapes are frequent."""
        if self._data is not None and self._data.ended:
            self._exporter.collector.wait_for_scrape(LAST_SCRAPE_S)
        self._exporter.close()

    def _page(self) -> list[Metric]:
        return capacity_families(self._data, self._name) if self._data is not None else []
