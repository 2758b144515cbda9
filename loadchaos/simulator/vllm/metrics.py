"""vLLM's /metrics: names, types, labels and buckets by era. The values are what the simulated engine really does."""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.simulator.engine.types import SPEC_COUNTERS, EngineStats
from loadchaos.simulator.http.metrics_page import Histogram, MetricsPage
from loadchaos.simulator.options import Options

_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class VllmMetrics:
    """The API server's counters, and the histogram that loadchaos reads. Gauges and engine counters come with each
    step, and stay as they are after its death.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._release = options.engine.release
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.mm_queries = 0
        self.mm_hits = 0
        self.step_tokens = Histogram(_STEP_TOKENS)

    def page(self, stats: EngineStats) -> bytes:
        page = MetricsPage()
        labels = {"engine": "0", "model_name": self._options.server.model}
        self._gauges(page, stats, labels)
        self._counters(page, stats, labels)
        text = "Histogram of number of tokens per engine_step."
        page.histogram("vllm:iteration_tokens_total", text, labels, self.step_tokens)
        self._config(page)
        return page.render()

    def _gauges(self, page: MetricsPage, stats: EngineStats, labels: Mapping[str, str]) -> None:
        def gauge(name: str, text: str, value: float) -> None:
            page.family(f"vllm:{name}", "gauge", text, [(labels, value)])

        gauge("num_requests_running", "Number of requests in model execution batches.", stats.requests_running)
        gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.requests_waiting)
        if self._release < (0, 11, 0):
            gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", stats.kv_usage)
        if self._release >= (0, 9, 2):
            gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage)

    def _counters(self, page: MetricsPage, stats: EngineStats, labels: Mapping[str, str]) -> None:
        engine = stats.counters

        def counter(name: str, text: str, value: float) -> None:
            page.family(f"vllm:{name}_total", "counter", text, [(labels, float(value))])

        old = "gpu_" if self._release < (0, 9, 2) else ""
        for name, seen in (("queries", "queried"), ("hits", "cached")):
            text = f"Prefix cache {name}, in terms of number of {seen} tokens."
            counter(f"{old}prefix_cache_{name}", text, engine.get(f"prefix_cache_{name}", 0))
        if self._release >= (0, 11, 2):
            for name, seen, value in (("queries", "queried", self.mm_queries), ("hits", "cached", self.mm_hits)):
                counter(f"mm_cache_{name}", f"Multi-modal cache {name}, in terms of number of {seen} items.", value)
        if self._options.engine.num_speculative_tokens:
            texts = ("spec decoding drafts", "draft tokens", "accepted tokens")
            for name, text in zip(SPEC_COUNTERS, texts, strict=True):
                counter(f"spec_decode_num_{name}", f"Number of {text}.", engine.get(f"spec_{name}", 0))
        counter("num_preemptions", "Cumulative number of preemption from the engine.", engine.get("preemptions", 0))
        counter("prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens)
        counter("generation_tokens", "Number of generation tokens processed.", self.generation_tokens)
        finished = [({**labels, "finished_reason": reason}, float(self.finished[reason])) for reason in self._reasons()]
        page.family("vllm:request_success_total", "counter", "Count of successfully processed requests.", finished)

    def _reasons(self) -> tuple[str, ...]:
        return FINISH_REASONS[: 3 if self._release < (0, 13, 0) else 4 if self._release < (0, 18, 0) else 5]

    def _config(self, page: MetricsPage) -> None:
        engine = self._options.engine
        labels = {
            "block_size": str(engine.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(engine.enable_prefix_caching),
            "engine": "0",
            "gpu_memory_utilization": str(engine.gpu_memory_utilization),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(engine.num_gpu_blocks),
            "num_gpu_blocks_override": "None",
        }
        if self._release >= (0, 30, 0):
            tokens = engine.num_gpu_blocks * engine.block_size
            labels["kv_cache_size_tokens"] = str(tokens)
            labels["kv_cache_max_concurrency"] = str(tokens / engine.max_model_len)
        text = "Information of the LLMEngine CacheConfig"
        page.family("vllm:cache_config_info", "gauge", text, [(labels, 1.0)])
