"""Locust's `NAME_stats.csv` (`--csv NAME`) and `--json-file`, times in milliseconds. Locust knows no tokens.

Locust rounds response times to two digits. It writes the CSV file once a second and not at its end, so that requests of
the last second are missing (Locust 2.47); the JSON file has all.
"""

from __future__ import annotations

from collections import Counter

from loadchaos.campaigns.recorder.reported.base import MS, at, count, difference, each, number, statistics
from loadchaos.core.latency_percentiles import STATISTICS
from loadchaos.core.reported_figures import ReportedFigures

_CSV = {
    "mean": "Average Response Time", "p50": "50%", "p90": "90%", "p95": "95%", "p99": "99%", "p999": "99.9%", "max": "100%",
}  # fmt: skip
_ROUNDED = "it rounds response times to two digits"


def read_csv(data: object) -> ReportedFigures | None:
    row = next((row for row in each(data) if at(row, "Name") == "Aggregated"), None)
    sent, failed = count(row, "Request Count"), count(row, "Failure Count")
    if sent is None or failed is None:
        return None
    return ReportedFigures(
        tool="Locust",
        requests_sent=sent,
        requests_ok=difference(sent, failed),
        requests_failed=failed,
        e2e_s=statistics(row, _CSV, MS),
        remark=f"its CSV file lacks the requests of the last second; {_ROUNDED}",
    )


def read_json(data: object) -> ReportedFigures | None:
    entries = [entry for entry in each(data) if count(entry, "num_requests") is not None]
    if not entries or len(entries) != len(list(each(data))):
        return None
    sent, failed = (sum(count(entry, key) or 0 for entry in entries) for key in ("num_requests", "num_failures"))
    times: Counter[float] = Counter()
    for entry in entries:
        found = at(entry, "response_times")
        for text, n in found.items() if isinstance(found, dict) else ():
            if (value := number(text)) is not None:
                times[value] += int(number(n) or 0)
    return ReportedFigures(
        tool="Locust",
        requests_sent=sent,
        requests_ok=difference(sent, failed),
        requests_failed=failed,
        e2e_s={name: _quantile(times, q) * MS for name, q in STATISTICS.items() if q is not None and times.total()},
        remark=_ROUNDED,
    )


def _quantile(times: Counter[float], q: float) -> float:
    seen, needed = 0, q * times.total()
    for value in sorted(times):
        seen += times[value]
        if seen >= needed:
            return value
    return max(times)
