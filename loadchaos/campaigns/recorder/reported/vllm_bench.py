"""`vllm bench serve --save-result` and `vllm-rs bench serve --save-result`: one JSON object, times in milliseconds.

TPOT divides by the tokens of usage, or by those of the tool's tokenizer. vllm-rs writes further keys, by which it is told.
"""

from __future__ import annotations

from loadchaos.campaigns.recorder.reported.base import MS, at, count, difference, statistics
from loadchaos.core.reported_figures import ReportedFigures

_OF_RUST = "input_throughput"
_OURS = "loadchaos_run"
_KEYS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9"}


def read(data: object) -> ReportedFigures | None:
    sent, ok = count(data, "num_prompts"), count(data, "completed")
    if sent is None or ok is None or at(data, "endpoint_type") is None or at(data, _OURS) is not None:
        return None
    failed = count(data, "failed")
    return ReportedFigures(
        tool="vllm bench serve" if at(data, _OF_RUST) is None else "vllm-rs bench serve",
        requests_sent=sent,
        requests_ok=ok,
        requests_failed=difference(sent, ok) if failed is None else failed,
        ttft_s=_latency(data, "ttft"),
        itl_s=_latency(data, "itl"),
        tpot_s=_latency(data, "tpot"),
        e2e_s=_latency(data, "e2el"),
        output_tokens=count(data, "total_output_tokens"),
    )


def _latency(data: object, metric: str) -> dict[str, float]:
    return statistics(data, {name: f"{key}_{metric}_ms" for name, key in _KEYS.items()}, MS)
