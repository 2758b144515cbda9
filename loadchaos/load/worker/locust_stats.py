"""Report requests to Locust's statistics, with entries for TTFT and ITL.

Their entries (types TTFT and ITL) do not change Locust's totals: rates and failure shares count requests only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

from locust.env import Environment
from locust.stats import bucket_response_time

from loadchaos.core.histogram import bucket_middle
from loadchaos.core.model import BLAMELESS, Reply

_MS = 1e6


def report(environment: Environment, traffic: str, reply: Reply, due_ns: int, *, tokens: bool) -> None:
    """Report one request to Locust.

    Args:
        environment: Locust's environment.
        traffic: Name of the traffic, which is the name of the entry.
        reply: The request's reply. Its response time, in ms, ends at the last byte if it is ok, else at its end.
        due_ns: When the request was due, monotonic ns; the response time begins there.
        tokens: Report TTFT and ITL, too.
    """
    failure = None if reply.outcome in BLAMELESS else reply.outcome
    end_ns = reply.last_byte_ns if reply.outcome == "ok" and reply.last_byte_ns is not None else reply.end_ns
    cast("Any", environment.events.request).fire(
        request_type="POST",
        name=traffic,
        response_time=(end_ns - due_ns) / _MS,
        response_length=reply.bytes_in,
        context={},
        response=None,
        exception=Exception(failure) if failure else None,
    )
    if not tokens or reply.outcome != "ok":
        return
    if reply.first_token_ns is not None:
        _add_times(environment, traffic, "TTFT", {(reply.first_token_ns - due_ns) / _MS: 1})
    if reply.itl_hist:
        _add_times(environment, traffic, "ITL", {bucket_middle(i) / _MS: n for i, n in reply.itl_hist.items()})


def _add_times(environment: Environment, traffic: str, kind: str, times: Mapping[float, int]) -> None:
    """Add many times at once, as StatsEntry.log would.

    An answer has thousands of gaps.
    """
    entry = cast("Any", environment.stats).get(traffic, kind)
    now = time.time()
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
