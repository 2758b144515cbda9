"""k6's end-of-test summary: `--summary-export`, the data of `handleSummary`, and the machine-readable summary of k6 2.

Times are in milliseconds. k6 reads no tokens. A request fails by its status alone; checks are not counted here.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.campaigns.recorder.reported.base import MS, at, count, difference, each, statistics
from loadchaos.core.reported_figures import ReportedFigures

_NAMES = {
    "mean": "avg", "p50": "med", "p90": "p(90)", "p95": "p(95)", "p99": "p(99)", "p999": "p(99.9)", "max": "max",
}  # fmt: skip
_FAILED = ("passes", "matches")
"""Keys of the requests for which `http_req_failed` holds."""


def read(data: object) -> ReportedFigures | None:
    sent = count(_metric(data, "http_reqs"), "count")
    if sent is None:
        return None
    failed = next((n for key in _FAILED if (n := count(_metric(data, "http_req_failed"), key)) is not None), None)
    return ReportedFigures(
        tool="k6",
        requests_sent=sent,
        requests_ok=difference(sent, failed),
        requests_failed=failed,
        e2e_s=statistics(_metric(data, "http_req_duration"), _NAMES, MS),
    )


def _metric(data: object, name: str) -> object:
    """Values of a metric: beside its name, under `values`, or in the list of k6 2."""
    listed = (m for m in each(at(data, "results", "metrics")) if at(m, "name") == name)
    found = next(listed, at(data, "metrics", name))
    values = at(found, "values")
    return values if isinstance(values, Mapping) else found
