"""Kinds of traffic grouped by the endpoint that they are sent to. Verdict, expectations, live view and comparison take
the groups from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadchaos.core.latency import LatencyHistograms

PREFIX = "endpoint."
"""Before the name of an endpoint in `expect`: `endpoint.chat.ttft_p99 <= 2s`."""


def traffic_by_endpoint(endpoints: Mapping[str, str], traffics: Iterable[str]) -> dict[str, list[str]]:
    """Group kinds of traffic by endpoint, in the order of their names. Traffic whose endpoint is not known is left out."""
    found: dict[str, list[str]] = {}
    for traffic in sorted(traffics):
        if traffic in endpoints:
            found.setdefault(endpoints[traffic], []).append(traffic)
    return dict(sorted(found.items()))


def several_endpoints(endpoints: Mapping[str, str], traffics: Iterable[str]) -> dict[str, list[str]]:
    """Group kinds of traffic by endpoint; empty unless there are several. With one endpoint the figures of all traffic
    are those of the endpoint.
    """
    found = traffic_by_endpoint(endpoints, traffics)
    return found if len(found) > 1 else {}


def merged_latency(parts: Iterable[LatencyHistograms | None]) -> LatencyHistograms:
    found = LatencyHistograms()
    for part in parts:
        if part is not None:
            found.merge(part)
    return found
