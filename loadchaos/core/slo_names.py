"""Names of the limits of `slo`: latencies of one request."""

from __future__ import annotations

SLO_LIMITS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "e2e": "end-to-end time",
    "itl_mean": "mean gap between two chunks",
    "itl_p50": "median gap between two chunks",
    "itl_p90": "gap between two chunks, p90",
    "itl_p95": "gap between two chunks, p95",
    "itl_p99": "gap between two chunks, p99",
    "itl_max": "longest gap between two chunks",
}
"""Limit by name, with its meaning. ITL statistics are over the gaps of one answer."""
