"""Report requests to Locust's statistics, with entries for TTFT and ITL.

Their entries (types TTFT and ITL) do not change Locust's totals: rates and failure shares count requests only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from locust.env import Environment
from locust.stats import bucket_response_time

from loadchaos.core.histogram import bucket_middle
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import BLAMELESS

_MS = 1e6
FLUSH_S = 0.25
"""Interval at which counted requests should reach Locust's statistics."""


class CountedRequests:
    """Good requests that are not yet in Locust's statistics. Locust's event and two of its entries take as long as
    sending a request; for some hundred requests at once they take a tenth of it. Failures, and all requests where
    somebody else listens to Locust's event, are reported at once. Call `flush` every `FLUSH_S` and at the end.
    """

    def __init__(self, environment: Environment, report_at_once: Callable[[EndRow], None]) -> None:
        self._environment = environment
        self._report_at_once = report_at_once
        self._times_ms: dict[str, list[float]] = {}
        self._bytes: dict[str, int] = {}

    def report(self, row: EndRow) -> None:
        traffic = row["traffic"]
        if row["outcome"] != "ok" or len(cast("Any", self._environment.events.request)._handlers) > 1:
            self._report_at_once(row)
            return
        times_ms = self._times_ms.get(traffic)
        if times_ms is None:
            times_ms = self._times_ms[traffic] = []
            self._bytes[traffic] = 0
        times_ms.append(((row["last_byte_ns"] or row["at_ns"]) - row["due_ns"]) / _MS)
        self._bytes[traffic] += row["bytes_in"]

    def flush(self) -> None:
        all_times_ms, self._times_ms = self._times_ms, {}
        stats = cast("Any", self._environment.stats)
        for traffic, times_ms in all_times_ms.items():
            for entry in (stats.total, stats.get(traffic, "POST")):
                now, last = time.time(), entry.last_request_timestamp
                if entry.use_response_times_cache and last and int(now) > int(last):
                    entry._cache_response_times(int(now) - 1)
                _add_times(entry, Counter(times_ms), now)
                entry.total_content_length += self._bytes[traffic]


def report(environment: Environment, row: EndRow, *, tokens: bool) -> None:
    """Report one request to Locust; `tokens`: TTFT and ITL, too.

    The response time begins when it was due and ends at the last byte if it is ok, else at its end.
    """
    traffic, outcome, due_ns, first_token_ns = row["traffic"], row["outcome"], row["due_ns"], row["first_token_ns"]
    failure = None if outcome in BLAMELESS else outcome
    end_ns = row["last_byte_ns"] if outcome == "ok" and row["last_byte_ns"] is not None else row["at_ns"]
    cast("Any", environment.events.request).fire(
        request_type="POST",
        name=traffic,
        response_time=(end_ns - due_ns) / _MS,
        response_length=row["bytes_in"],
        context={},
        response=None,
        exception=Exception(failure) if failure else None,
    )
    if not tokens or outcome != "ok":
        return
    stats = cast("Any", environment.stats)
    if first_token_ns is not None:
        _add_times(stats.get(traffic, "TTFT"), {(first_token_ns - due_ns) / _MS: 1}, time.time())
    if row["itl_hist"]:
        gaps_ms = {bucket_middle(i) / _MS: n for i, n in row["itl_hist"].items()}
        _add_times(stats.get(traffic, "ITL"), gaps_ms, time.time())


def _add_times(entry: Any, times: Mapping[float, int], now: float) -> None:
    """Add many times at once, as StatsEntry.log would. An answer has thousands of gaps."""
    n = sum(times.values())
    entry.num_requests += n
    entry.num_reqs_per_sec[int(now)] += n
    entry.last_request_timestamp = now
    entry.total_response_time += sum(ms * k for ms, k in times.items())
    lowest = min(times)
    entry.min_response_time = lowest if entry.min_response_time is None else min(entry.min_response_time, lowest)
    entry.max_response_time = max(entry.max_response_time, *times)
    for ms, k in times.items():
        entry.response_times[bucket_response_time(ms)] += k
