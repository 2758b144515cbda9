"""GuideLLM's `benchmarks.json`: one benchmark for each rate, times in milliseconds.

Its inter-token latency is a TPOT: the time from the first token to the last, divided by the tokens after the first. Its
`time_per_output_token_ms` includes the first token. Percentiles of several benchmarks cannot be joined.
"""

from __future__ import annotations

from loadchaos.campaigns.recorder.reported.base import MS, S, at, count, each, statistics
from loadchaos.core.reported_figures import ReportedFigures

_RANKS = {name: name for name in ("p50", "p90", "p95", "p99", "p999")}


def read(data: object) -> ReportedFigures | None:
    benchmarks = [b for b in each(at(data, "benchmarks")) if count(_made(b), "total") is not None]
    if not benchmarks:
        return None
    metrics = at(benchmarks[0], "metrics") if len(benchmarks) == 1 else None
    incomplete = _sum(benchmarks, "incomplete")
    remarks = [
        f"{incomplete} requests were incomplete when its time was over" if incomplete else "",
        f"the file has {len(benchmarks)} benchmarks, whose percentiles cannot be joined" if not metrics else "",
    ]
    return ReportedFigures(
        tool="GuideLLM",
        requests_sent=_sum(benchmarks, "total"),
        requests_ok=_sum(benchmarks, "successful"),
        requests_failed=_sum(benchmarks, "errored"),
        ttft_s=_latency(metrics, "time_to_first_token_ms", MS),
        tpot_s=_latency(metrics, "inter_token_latency_ms", MS),
        e2e_s=_latency(metrics, "request_latency", S),
        output_tokens=sum(
            count(b, "metrics", "output_token_count", "successful", "total_sum") or 0 for b in benchmarks
        ),
        remark="; ".join(filter(None, remarks)),
    )


def _made(benchmark: object) -> object:
    """Requests of a benchmark; those of `metrics` are without warm-up and cool-down."""
    made = at(benchmark, "scheduler_metrics", "requests_made")
    return at(benchmark, "metrics", "request_totals") if made is None else made


def _sum(benchmarks: list[object], name: str) -> int:
    return sum(count(_made(benchmark), name) or 0 for benchmark in benchmarks)


def _latency(metrics: object, name: str, unit_s: float) -> dict[str, float]:
    ok = at(metrics, name, "successful")
    return statistics(ok, {"mean": "mean", "max": "max"}, unit_s) | statistics(at(ok, "percentiles"), _RANKS, unit_s)
