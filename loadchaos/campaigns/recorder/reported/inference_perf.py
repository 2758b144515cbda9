"""inference-perf's `summary_lifecycle_metrics.json` and `stage_N_lifecycle_metrics.json`, times in seconds.

TPOT divides by the tokens of its own tokenizer (`output_len`); `output_tokens` are those of usage.
"""

from __future__ import annotations

from loadchaos.campaigns.recorder.reported.base import S, at, count, number, statistics
from loadchaos.core.reported_figures import ReportedFigures

_NAMES = {
    "mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max",
}  # fmt: skip


def read(data: object) -> ReportedFigures | None:
    sent, ok = count(data, "load_summary", "count"), count(data, "successes", "count")
    if sent is None or ok is None:
        return None
    latency = at(data, "successes", "latency")
    length, tokens = (
        number(at(data, "successes", "output_len", "mean")),
        count(data, "successes", "output_tokens", "total"),
    )
    own = None if length is None else round(length * ok)
    return ReportedFigures(
        tool="inference-perf",
        requests_sent=sent,
        requests_ok=ok,
        requests_failed=count(data, "failures", "count"),
        ttft_s=statistics(at(latency, "time_to_first_token"), _NAMES, S),
        tpot_s=statistics(at(latency, "time_per_output_token"), _NAMES, S),
        e2e_s=statistics(at(latency, "request_latency"), _NAMES, S),
        output_tokens=own if tokens is None else tokens,
        remark=f"its TPOT counts {own} output tokens with its own tokenizer"
        if None not in (own, tokens) and own != tokens
        else "",
    )
