"""Limits of hangs, outages and deaths: times after which silence or failures change the state of a server."""

from __future__ import annotations

from loadchaos.core.limits import OUTAGE_S, SCRAPE_EVERY_S
from loadchaos.core.units import NS_PER_MS, NS_PER_S
from loadchaos.server.dialects import SLOWEST_GAUGES_S

DEGRADED_NS = 4 * NS_PER_S
"""No progress with requests in flight. It is shown within 5 s: one second is for probes and heartbeats."""
HUNG_STOPPED_NS = 5 * NS_PER_S
"""No progress while a serving process is stopped."""
HUNG_IDLE_ENGINE_NS = 8 * NS_PER_S
"""No progress and no CPU time of the engine, which has work."""
HUNG_IDLE_API_NS = 10 * NS_PER_S
"""No progress and no CPU time of the API server either. It may wait for an image's URL, which vLLM gives 5 s."""
HUNG_SILENT_STREAMS_NS = 10 * NS_PER_S
"""Silence of all streams of a server that streams."""
HUNG_FAST_STREAMS_NS = 5 * NS_PER_S
"""The same, of a server that has streamed for `FAST_S` without a gap over `FAST_GAP_NS`."""
STREAMED_S = 5.0
"""Time with tokens after which the gaps of a server are known. Before that a first request may compile."""
FAST_S, FAST_GAP_NS = 30.0, 1 * NS_PER_S
HUNG_SAYS_SO_NS = 10 * NS_PER_S
"""No progress, and `/health` says that the engine does not answer."""
HUNG_AT_LATEST_NS = 60 * NS_PER_S
"""No progress without any other sign: the engine may be compiling."""
GAPS = 3
"""Silence, in longest gaps between two signs of progress so far, up to which it may be such a gap again."""
FIRST_GAPS = 1.5
"""The same, in longest gaps before the gaps of the server were known."""
COUNTERS_STUCK_NS = int(1.5 * SLOWEST_GAUGES_S * NS_PER_S)
"""Counters of running requests that stand still. Some servers renew theirs that seldom."""
COUNTERS_FRESH_NS = int(3 * SCRAPE_EVERY_S * NS_PER_S)
"""Age from which on counters say nothing."""
MOST_PREFILL_NS = 50 * NS_PER_S
"""Most by which prompts without a first token raise the limits of streams."""
OUTAGE_NS = int(OUTAGE_S * NS_PER_S)
BALANCER_NS = 10 * NS_PER_S
"""Wait before a moved start time or counter is a restart: several servers behind one address look the same at first."""
TEXT_BESIDE_NS = 2 * NS_PER_S
"""Answers that name a dead engine, with a second sign of a death."""
TEXT_ALONE_NS = 10 * NS_PER_S
"""Answers that name a dead engine, while every request fails: vLLM 0.8 answers `/health` with 200 then."""
FEWEST_FAILED = 3
"""Failed requests without an answered one among them: fewer prove no outage and no death."""
LAST_WORD_NS = 300 * NS_PER_MS
"""Time that the log has to show an orderly shutdown, before the end of the engine core is a death."""


def beyond_gaps_ns(least_ns: int, longest_gap_ns: int) -> int:
    """Silence that is no gap any more: `least_ns`, or `GAPS` times the longest gap if that is more."""
    return max(least_ns, GAPS * longest_gap_ns)
