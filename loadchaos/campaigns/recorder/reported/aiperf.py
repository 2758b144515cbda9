"""AIPerf's `profile_export_aiperf.json`: metrics with statistics, times in milliseconds.

Its inter-token latency is a TPOT, by the tokens of its own tokenizer unless `--use-server-token-count` is given.
"""

from __future__ import annotations

from loadchaos.campaigns.recorder.reported.base import MS, at, count, statistics
from loadchaos.core.reported_figures import ReportedFigures

_NAMES = {"mean": "avg", "max": "max", **{name: name for name in ("p50", "p90", "p95", "p99")}}


def read(data: object) -> ReportedFigures | None:
    ok, failed = count(data, "request_count", "avg"), count(data, "error_request_count", "avg")
    if at(data, "aiperf_version") is None or (ok is None and failed is None):
        return None
    tokens, of_usage = count(data, "total_output_tokens", "avg"), count(data, "total_usage_completion_tokens", "avg")
    own = of_usage is not None and of_usage != tokens
    return ReportedFigures(
        tool="AIPerf",
        requests_sent=(ok or 0) + (failed or 0),
        requests_ok=ok or 0,
        requests_failed=failed or 0,
        ttft_s=statistics(at(data, "time_to_first_token"), _NAMES, MS),
        tpot_s=statistics(at(data, "inter_token_latency"), _NAMES, MS),
        e2e_s=statistics(at(data, "request_latency"), _NAMES, MS),
        output_tokens=tokens,
        remark=f"it counts {tokens} output tokens with its own tokenizer; usage has {of_usage}" if own else "",
    )
