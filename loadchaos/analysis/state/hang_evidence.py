"""Evidence of a hang: work without progress.

Silence alone is a hang only after a limit (limits.py). Idle processes, /health, and streams that are silent for longer
than their own gaps explain make it one earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadchaos.analysis.state.client_evidence import ClientEvidence
from loadchaos.analysis.state.limits import (
    COUNTERS_FRESH_NS,
    COUNTERS_STUCK_NS,
    HUNG_IDLE_API_NS,
    HUNG_IDLE_ENGINE_NS,
    HUNG_SAYS_SO_NS,
    HUNG_STOPPED_NS,
)
from loadchaos.analysis.state.signals import CounterSignals, NetworkSignals, ProcessSignals, TrafficSignals
from loadchaos.core.limits import SILENT_STREAMS
from loadchaos.core.units import NS_PER_S

_IDLE_FOR_NS = 5 * NS_PER_S


@dataclass
class HangEvidence:
    """Signs of a hang of one replica, from its signals."""

    traffic: TrafficSignals
    network: NetworkSignals
    processes: ProcessSignals
    counters: CounterSignals
    client: ClientEvidence

    def stopped(self, stuck_ns: int, now_ns: int) -> str | None:
        stopped = self.processes.stopped()
        if stopped is None or now_ns - stuck_ns < HUNG_STOPPED_NS or now_ns - stopped[0] < NS_PER_S:
            return None
        return stopped[1]

    def sign(self, stuck_ns: int, now_ns: int, limit_ns: int, *, reachable: bool, may_work: bool) -> str | None:
        """Sign that silence since `stuck_ns` is a hang, None while it may be work. `may_work`: the streams' own gaps
        prove nothing, because the engine is seen or the server itself answers.
        """
        quiet_ns = now_ns - stuck_ns
        idle = self.processes.idle_since(now_ns, _IDLE_FOR_NS)
        if idle is not None and quiet_ns >= HUNG_IDLE_ENGINE_NS and self.counters.work():
            return "engine processes use no CPU"
        resting = self.processes.all_idle_since(now_ns, _IDLE_FOR_NS)
        if resting is not None and quiet_ns >= HUNG_IDLE_API_NS:
            return "engine and API server use no CPU"
        if quiet_ns >= HUNG_SAYS_SO_NS and self.network.says_hung():
            return f"/health says: {self.network.unhealthy_body[:120]}"
        if not reachable:
            return None
        if quiet_ns >= limit_ns:
            return f"longer than the limit of {limit_ns // NS_PER_S} s"
        streams_ns = min(self.client.stall_limit_ns(now_ns), limit_ns)
        if not may_work and not self.processes.engine_seen(now_ns) and quiet_ns >= streams_ns:
            n = self.client.stalled(streams_ns, now_ns)
            if n >= SILENT_STREAMS:
                return f"{n} or more streams silent for longer than {streams_ns / NS_PER_S:.3g} s, by its own gaps"
        return None

    def stuck_requests(self, now_ns: int, progress_ns: int) -> tuple[int, str] | None:
        """(since when, sign) of our requests in flight without a token. Only for a replica that gets all our traffic.
        The time is 0 where requests are noted but none is in flight.
        """
        traffic = self.traffic
        if traffic.busy_since_ns is not None and (n := traffic.in_flight(now_ns)):
            since_ns = max(traffic.busy_since_ns, progress_ns, traffic.waiting_since(now_ns))
            return since_ns, f"{n} in flight, no tokens for {(now_ns - since_ns) / NS_PER_S:.1f} s"
        if (asked_ns := traffic.canary_since()) is not None:
            since_ns = max(asked_ns, progress_ns)
            what = "the question after the load" if traffic.last_question_waits else "canary"
            return since_ns, f"{what} unanswered for {(now_ns - since_ns) / NS_PER_S:.1f} s"
        return None if traffic.busy_since_ns is None else (0, "")

    def stuck_counters(self, now_ns: int, progress_ns: int) -> tuple[int, str] | None:
        counters = self.counters
        running, moved_ns = counters.gauge("requests_running"), counters.moved_ns
        fresh = counters.at_ns is not None and now_ns - counters.at_ns < COUNTERS_FRESH_NS
        if not running or not fresh or moved_ns is None or now_ns - moved_ns <= COUNTERS_STUCK_NS:
            return None
        since_ns = max(moved_ns, progress_ns)
        return since_ns, f"server reports {running:g} running requests, but its counters do not change"
