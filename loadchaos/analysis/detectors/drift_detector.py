"""What goes wrong slowly, in no line of any log: latency that drifts, and KV cache, threads and files that leak.

Folds rows into bounded samples; each question is a pure function over them, asked now and then and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from loadchaos.analysis.detectors.trend_tests import Point, RisingTrend, Samples, creeping
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.request_stats import S
from loadchaos.core.model import Row, Severity

_LATENCY_SPAN_S = 120.0
_LATENCY_BY = 0.5
_TTFT_AT_LEAST_S, _TPOT_AT_LEAST_S = 0.05, 0.005
_CONSTANT = 0.2  # in flight in the last third differs by less than this from the first third
_HANDLES_SPAN_S = 300.0
_HANDLES = (("fds", "fd_leak", "open files", 100.0), ("threads", "thread_leak", "threads", 30.0))
_HANDLES_BY = 0.2
_IDLE_FOR_S = 3.0
_KV_STEPS, _KV_AT_LEAST = 4, 0.01
_MOST_PROCESSES = 32
_ROLES = ("api_server", "engine_core", "worker")


def drifting(latencies: Sequence[Point], in_flight: Sequence[Point], *, at_least: float) -> RisingTrend | None:
    """Latency that rises by half or more over two minutes or more while as many requests are out as before."""
    if not latencies or latencies[-1][0] - latencies[0][0] < _LATENCY_SPAN_S:
        return None
    trend = creeping(latencies, at_least=at_least, by=_LATENCY_BY)
    return trend if trend is not None and _constant(in_flight) else None


def _constant(in_flight: Sequence[Point]) -> bool:
    """Whether as many requests were out at the end as at the beginning."""
    if len(in_flight) < 3:
        return False
    third = max(1, len(in_flight) // 3)
    first, last = (median(v for _, v in part) for part in (in_flight[:third], in_flight[-third:]))
    return first > 0 and abs(last / first - 1) <= _CONSTANT


def piling_up(counts: Sequence[Point], in_flight: Sequence[Point], *, at_least: float) -> RisingTrend | None:
    """Threads or open files that rise by a fifth or more over five minutes or more while as many requests are out."""
    if not counts or counts[-1][0] - counts[0][0] < _HANDLES_SPAN_S:
        return None
    if (
        max(v for _, v in counts) - min(v for _, v in counts) < at_least
    ):  # most never move: spare them the slope of all pairs
        return None
    trend = creeping(counts, at_least=at_least, by=_HANDLES_BY)
    return trend if trend is not None and _constant(in_flight) else None


def kv_left(idle: Sequence[float]) -> tuple[float, float] | None:
    """KV cache in use (0..1) at the end of idle times, one value each: (first, last) where each is above the one before."""
    if len(idle) < _KV_STEPS or idle[-1] - idle[0] < _KV_AT_LEAST:
        return None
    return (idle[0], idle[-1]) if all(b > a for a, b in pairwise(idle)) else None


@dataclass
class _Phase:
    ttft: Samples = field(default_factory=Samples)
    tpot: Samples = field(default_factory=Samples)
    in_flight: Samples = field(default_factory=Samples)
    handles: dict[tuple[str, int, str], tuple[str, Samples]] = field(default_factory=dict)


@dataclass
class _Idle:
    since_ns: int | None = None
    usage: float = 0.0


class DriftDetector:
    """Folds end, heartbeat, process, metrics and phase rows; `found` says what creeps, each id and place once."""

    def __init__(self) -> None:
        self._phase = _Phase()
        self._number: object = None
        self._flying: dict[str, int] = {}
        self._idle: dict[tuple[str, str], _Idle] = {}
        self._left: dict[tuple[str, str], list[float]] = {}
        self._told: set[tuple[str, str]] = set()
        self._ended = False

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        handler = getattr(self, f"_on_{row.get('row')}", None)
        if handler is not None:
            handler(row)

    def _on_end(self, row: Row) -> None:
        if row.get("outcome") != "ok" or not row.get("first_token_ns") or not row.get("sent_ns"):
            return
        if row.get("phase") != self._number:
            self._number, self._phase = row.get("phase"), _Phase()  # another load: nothing is comparable
        at_s = row["at_ns"] / S
        self._phase.ttft.add(at_s, (row["first_token_ns"] - row["sent_ns"]) / S)
        tokens = int(row.get("completion_tokens") or 0)
        if tokens > 1 and row.get("last_byte_ns"):
            self._phase.tpot.add(at_s, (row["last_byte_ns"] - row["first_token_ns"]) / S / (tokens - 1))

    def _on_heartbeat(self, row: Row) -> None:
        self._flying[str(row.get("file"))] = int(row.get("in_flight") or 0)
        self._phase.in_flight.add(row["at_ns"] / S, float(sum(self._flying.values())))

    def _on_process(self, row: Row) -> None:
        role, known = str(row.get("role")), self._phase.handles
        for name, *_ in _HANDLES:
            key = (str(row.get("replica")), int(row.get("pid") or 0), name)
            if row.get("what") == "gone":
                known.pop(key, None)
            elif role in _ROLES and row.get(name) and (key in known or len(known) < _MOST_PROCESSES * len(_HANDLES)):
                # a file a connection: only under one load they are comparable
                known.setdefault(key, (role, Samples()))[1].add(row["at_ns"] / S, float(row[name]))

    def _on_metrics(self, row: Row) -> None:
        values = row.get("values") or {}
        usage, key = values.get("kv_usage_ratio"), (str(row.get("replica")), str(row.get("engine")))
        if usage is None or "requests_running" not in values:
            return
        if self._ended:
            self._left.clear()
            self._ended = False
        idle = self._idle.setdefault(key, _Idle())
        if values["requests_running"] or values.get("requests_waiting"):
            self._note_idle(key, row["at_ns"])
            idle.since_ns = None
        else:
            idle.since_ns = idle.since_ns if idle.since_ns is not None else row["at_ns"]
            idle.usage = float(usage)

    def _note_idle(self, key: tuple[str, str], now_ns: int) -> None:
        """An idle time is over; one that was long enough for the gauge to be true is remembered."""
        idle = self._idle[key]
        if idle.since_ns is not None and (now_ns - idle.since_ns) / S >= _IDLE_FOR_S:
            left = self._left.setdefault(key, [])
            left.append(idle.usage)
            del left[:-_MOST_PROCESSES]

    def _on_state(self, row: Row) -> None:
        if row.get("to") in ("dead", "restarting", "terminated"):  # a new process begins anew
            # What was seen until now is judged still, at the end of the run, say: it goes with the new one's first figures.
            for key in self._idle:
                self._note_idle(key, row["at_ns"])
            self._idle.clear()
            self._ended = True
            self._phase = _Phase()

    def found(self, now_ns: int) -> list[Failure]:
        """What creeps, as of now."""
        parts = (self._latencies, self._handles, self._cache)
        return [s for part in parts for s in part(now_ns) if self._new(s)]

    def _new(self, seen: Failure) -> bool:
        key = (seen.id, str(seen.process))
        fresh = key not in self._told
        self._told.add(key)
        return fresh

    def _latencies(self, now_ns: int) -> list[Failure]:
        found = []
        for name, samples, at_least in (
            ("TTFT", self._phase.ttft, _TTFT_AT_LEAST_S),
            ("time per output token", self._phase.tpot, _TPOT_AT_LEAST_S),
        ):
            trend = drifting(samples.points(), self._phase.in_flight.points(), at_least=at_least)
            if trend is not None:
                title = f"{name} drifts under constant load: from {_ms(max(0.0, trend.begin))} to {_ms(trend.end)}"
                title += f" in {trend.span_s:.0f} s"
                remedy = (
                    "compare with a restarted server; look at its memory, its KV cache and its queues over this time"
                )
                found.append(_seen("latency_drift", "degraded", title, remedy, now_ns, name))
        return found

    def _handles(self, now_ns: int) -> list[Failure]:
        found = []
        for (_, pid, kind), (role, samples) in self._phase.handles.items():
            _, name, words, at_least = next(h for h in _HANDLES if h[0] == kind)
            trend = piling_up(samples.points(), self._phase.in_flight.points(), at_least=at_least)
            if trend is not None:
                title = (
                    f"{words.capitalize()} of the {role.replace('_', ' ')} (pid {pid}) pile up under constant load: "
                )
                title += (
                    f"{trend.begin:.0f} to {trend.end:.0f} in {trend.span_s:.0f} s, {trend.per_s * 3600:.0f} an hour"
                )
                remedy = "restart it before its limit (ulimit) is reached; look at what they are in /proc/PID"
                found.append(_seen(name, "degraded", title, remedy, now_ns, f"pid {pid}"))
        return found

    def _cache(self, now_ns: int) -> list[Failure]:
        found = []
        for replica, engine in {**self._left, **self._idle}:
            values, idle = list(self._left.get((replica, engine), ())), self._idle.get((replica, engine), _Idle())
            if idle.since_ns is not None and (now_ns - idle.since_ns) / S >= _IDLE_FOR_S:
                values.append(idle.usage)
            rise = kv_left(values)
            if rise is not None:
                title = f"KV cache leaks: with nothing running {rise[0]:.1%} of it is in use at first, {rise[1]:.1%} at last"
                remedy = "look for requests that were aborted, or whose client left: their blocks are not given back"
                found.append(_seen("kv_leak", "degraded", title, remedy, now_ns, f"engine {engine}"))
        return found


def _seen(name: str, severity: Severity, title: str, remedy: str, at_ns: int, where: str) -> Failure:
    return Failure(name, severity, title, evidence("figures", title), at_ns, process=where, remedy=remedy)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
