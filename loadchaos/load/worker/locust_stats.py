"""Tells Locust's statistics of one request: the request itself, and TTFT and ITL as entries of their own.

TTFT and ITL stand beside the requests (types TTFT and ITL) and leave Locust's totals alone: rates and shares of failures
count requests, nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

from locust.env import Environment
from locust.stats import bucket_response_time

from loadchaos.core.model import BLAMELESS, Reply
from loadchaos.core.stats import bucket_middle

_MS = 1e6


def tell(environment: Environment, traffic: str, reply: Reply, due_ns: int, *, tokens: bool) -> None:
    """One request: ms from due to its last byte where it ended ok, else to its end; `tokens`: TTFT and ITL, too."""
    wrong = None if reply.outcome in BLAMELESS else reply.outcome
    end_ns = reply.last_byte_ns if reply.outcome == "ok" and reply.last_byte_ns is not None else reply.end_ns
    cast("Any", environment.events.request).fire(
        request_type="POST",
        name=traffic,
        response_time=(end_ns - due_ns) / _MS,
        response_length=reply.bytes_in,
        context={},
        response=None,
        exception=Exception(wrong) if wrong else None,
    )
    if not tokens or reply.outcome != "ok":
        return
    if reply.first_token_ns is not None:
        _count(environment, traffic, "TTFT", {(reply.first_token_ns - due_ns) / _MS: 1})
    if reply.itl_hist:
        _count(environment, traffic, "ITL", {bucket_middle(i) / _MS: n for i, n in reply.itl_hist.items()})


def _count(environment: Environment, traffic: str, kind: str, times: Mapping[float, int]) -> None:
    """As StatsEntry.log would, many times at once: an answer has thousands of gaps."""
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
