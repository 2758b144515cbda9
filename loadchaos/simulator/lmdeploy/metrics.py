"""LMDeploy's /metrics. Scheduler gauges are refreshed every 10 s only, as in the real server."""

from __future__ import annotations

import time

from loadchaos.simulator.engine.types import SPEC_COUNTERS, EngineStats
from loadchaos.simulator.http.metrics_page import Histogram, MetricsPage
from loadchaos.simulator.options import Options

_REFRESH_S = 10.0


class LmdeployMetrics:
    """The API server's counters, and the histogram that loadchaos reads."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._release = options.engine.release
        self._stats = EngineStats(0, 0, 0.0)
        self._refreshed = -_REFRESH_S
        self.succeeded = self.failed = 0
        self.in_flight = 0
        self.prompt_tokens = self.generation_tokens = 0
        self.step_tokens = Histogram((1.0, *(2.0**n for n in range(3, 14))))

    def page(self, stats: EngineStats) -> bytes:
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH_S:
            self._refreshed, self._stats = now, stats
        page = MetricsPage()
        labels = {"engine": "0", "model_name": self._options.server.model}
        for kind, end, values in (("gauge", "", self._gauges()), ("counter", "_total", self._counters(stats))):
            for name, value in values.items():
                page.family(f"lmdeploy:{name}{end}", kind, name.replace("_", " "), [(labels, float(value))])
        page.histogram("lmdeploy:iteration_tokens_total", "iteration tokens total", labels, self.step_tokens)
        return page.render()

    def _gauges(self) -> dict[str, float]:
        stats = self._stats
        gauges: dict[str, float] = {}
        if self._release >= (0, 13, 0):
            gauges |= {"num_requests_succeeded": self.succeeded, "num_requests_failed": self.failed}
            waiting = max(0, self.in_flight - self._options.engine.max_num_seqs)
            gauges["num_api_requests_waiting"] = waiting
        else:
            gauges["num_requests_finished"] = self.succeeded + self.failed
        gauges |= {"num_requests_running": stats.requests_running, "num_requests_waiting": stats.requests_waiting}
        return gauges | {"gpu_cache_usage_perc": stats.kv_usage}

    def _counters(self, stats: EngineStats) -> dict[str, float]:
        counters: dict[str, float] = {"prompt_tokens": self.prompt_tokens, "generation_tokens": self.generation_tokens}
        spec = {f"spec_decode_num_{n}": stats.counters.get(f"spec_{n}", 0) for n in SPEC_COUNTERS}
        return counters | spec
