"""Detect slow degradation: latency drift, leaks of KV cache and handles."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from loadchaos.analysis.detectors.base import Detector, from_figures
from loadchaos.analysis.detectors.devices import MOST_PROCESSES
from loadchaos.analysis.detectors.trend_tests import Point, RisingTrend, Samples, rising_trend
from loadchaos.analysis.failure import Failure
from loadchaos.core.latency import tpot_ns
from loadchaos.core.ledger.rows import EndRow, HeartbeatRow, MetricsRow, ProcessRow, StateRow
from loadchaos.core.model import SERVER_ROLES
from loadchaos.core.units import NS_PER_S

_LATENCY_SPAN_S = 120.0
_LATENCY_BY = 0.5
_TTFT_AT_LEAST_S, _TPOT_AT_LEAST_S = 0.05, 0.005
_ROUNDS = 2  # answers to each request in flight before the load is steady: the first ones find an empty queue
_MORE_BY, _MORE = 1.2, 2  # a load that grows by more is not steady yet
_CONSTANT = 0.2  # in flight in the last third differs by less than this from the first third
_HANDLES_SPAN_S = 300.0
_HANDLES: tuple[tuple[Literal["fds", "threads"], str, str, float], ...] = (
    ("fds", "fd_leak", "open files", 100.0),
    ("threads", "thread_leak", "threads", 30.0),
)
_HANDLES_BY = 0.2
_IDLE_FOR_S = 3.0
_KV_STEPS, _KV_AT_LEAST = 4, 0.01


def latency_trend(latencies: Sequence[Point], in_flight: Sequence[Point], *, at_least: float) -> RisingTrend | None:
    """Latency trend: up by half over two minutes or more, constant load. Points are of the steady time only."""
    if not latencies or latencies[-1][0] - latencies[0][0] < _LATENCY_SPAN_S:
        return None
    trend = rising_trend(latencies, at_least=at_least, by=_LATENCY_BY)
    return trend if trend is not None and _constant(in_flight) else None


def _constant(in_flight: Sequence[Point]) -> bool:
    first, last = _ends(in_flight)
    return first > 0 and abs(last / first - 1) <= _CONSTANT


def _ends(points: Sequence[Point]) -> tuple[float, float]:
    """Medians of the first and the last third; 0 of fewer than three points."""
    third = len(points) // 3
    return (median(v for _, v in points[:third]), median(v for _, v in points[-third:])) if third else (0.0, 0.0)


def stable_queue(waiting: Sequence[Point]) -> bool:
    """True when a count of the server did not change, or without counts."""
    first, last = _ends(waiting)
    return abs(last - first) <= max(1.0, _CONSTANT * first)


def handle_trend(counts: Sequence[Point], in_flight: Sequence[Point], *, at_least: float) -> RisingTrend | None:
    """Handle trend: up by a fifth over five minutes or more, constant load."""
    if not counts or counts[-1][0] - counts[0][0] < _HANDLES_SPAN_S:
        return None
    values = [v for _, v in counts]
    if max(values) - min(values) < at_least:  # most never change: skip the slope of all pairs
        return None
    trend = rising_trend(counts, at_least=at_least, by=_HANDLES_BY)
    return trend if trend is not None and _constant(in_flight) else None


def kv_rise(idle: Sequence[float]) -> tuple[float, float] | None:
    """(first, last) KV use (0..1) of idle periods when it rises each time. `idle` has one value a period."""
    if len(idle) < _KV_STEPS or idle[-1] - idle[0] < _KV_AT_LEAST:
        return None
    return (idle[0], idle[-1]) if all(b > a for a, b in pairwise(idle)) else None


@dataclass
class _Phase:
    ttft: Samples = field(default_factory=Samples)
    tpot: Samples = field(default_factory=Samples)
    in_flight: Samples = field(default_factory=Samples)
    running: Samples = field(default_factory=Samples)
    waiting: Samples = field(default_factory=Samples)
    answers: int = 0
    peak: int = 0
    steady_ns: int | None = None
    handles: dict[tuple[str, int, str], tuple[str, Samples]] = field(default_factory=dict)

    def flying(self, at_ns: int, n: int) -> None:
        self.in_flight.add(at_ns / NS_PER_S, float(n))
        if n > max(_MORE_BY * self.peak, self.peak + _MORE):
            self.peak, self.answers, self.steady_ns = n, 0, None
            self.ttft, self.tpot = Samples(), Samples()
        self.peak = max(self.peak, n)

    def answered(self, at_ns: int) -> None:
        """Count an answer. After two to each request in flight the queue is as long as this load makes it."""
        self.answers += 1
        if self.steady_ns is None and self.peak and self.answers >= _ROUNDS * self.peak:
            self.steady_ns = at_ns

    def steady(self, samples: Samples) -> list[Point]:
        since_s = self.steady_ns / NS_PER_S if self.steady_ns is not None else float("inf")
        return [point for point in samples.points() if point[0] >= since_s]


@dataclass
class _Idle:
    since_ns: int | None = None
    usage: float = 0.0

    def is_long(self, now_ns: int) -> bool:
        return self.since_ns is not None and (now_ns - self.since_ns) / NS_PER_S >= _IDLE_FOR_S


class DriftDetector(Detector):
    """Folds end, heartbeat, process, metrics and state rows. Reports each id and place once."""

    slow = True

    def __init__(self) -> None:
        super().__init__()
        self._phase = _Phase()
        self._phase_n: object = None
        self._in_flight: dict[str, int] = {}
        self._queues: dict[tuple[str, str], tuple[float, float]] = {}
        self._idle: dict[tuple[str, str], _Idle] = {}
        self._kv_after_idle: dict[tuple[str, str], deque[float]] = {}
        self._restarted = False

    def on_end(self, row: EndRow) -> None:
        first_ns, sent_ns = row.get("first_token_ns"), row.get("sent_ns")
        if row.get("outcome") != "ok" or not first_ns or not sent_ns:
            return
        if row.get("phase") != self._phase_n:
            self._phase_n, self._phase = row.get("phase"), _Phase()  # another load: nothing is comparable
        self._phase.answered(int(row["at_ns"]))
        if self._phase.steady_ns is None or sent_ns < self._phase.steady_ns:
            return
        at_s = row["at_ns"] / NS_PER_S
        self._phase.ttft.add(at_s, (first_ns - sent_ns) / NS_PER_S)
        if (per_token_ns := tpot_ns(row)) is not None:
            self._phase.tpot.add(at_s, per_token_ns / NS_PER_S)

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self._in_flight[str(row.get("file"))] = int(row.get("in_flight") or 0)
        self._phase.flying(int(row["at_ns"]), sum(self._in_flight.values()))

    def on_process(self, row: ProcessRow) -> None:
        role, handles = str(row.get("role")), self._phase.handles
        for name, *_ in _HANDLES:
            key = (str(row.get("replica")), int(row.get("pid") or 0), name)
            if row.get("what") == "gone":
                handles.pop(key, None)
            elif (
                role in SERVER_ROLES
                and (value := row.get(name))
                and (key in handles or len(handles) < MOST_PROCESSES * len(_HANDLES))
            ):
                # a file a connection: only under one load they are comparable
                handles.setdefault(key, (role, Samples()))[1].add(row["at_ns"] / NS_PER_S, float(value))

    def on_metrics(self, row: MetricsRow) -> None:
        values = row.get("values") or {}
        usage, key = values.get("kv_usage_ratio"), (str(row.get("replica")), str(row.get("engine")))
        self._queues[key] = float(values.get("requests_running") or 0), float(values.get("requests_waiting") or 0)
        for samples, i in ((self._phase.running, 0), (self._phase.waiting, 1)):
            samples.add(row["at_ns"] / NS_PER_S, sum(queue[i] for queue in self._queues.values()))
        if usage is None or "requests_running" not in values:
            return
        if self._restarted:
            self._kv_after_idle.clear()
            self._restarted = False
        idle = self._idle.setdefault(key, _Idle())
        if values["requests_running"] or values.get("requests_waiting"):
            self._note_idle(key, row["at_ns"])
            idle.since_ns = None
        else:
            idle.since_ns = idle.since_ns if idle.since_ns is not None else row["at_ns"]
            idle.usage = float(usage)

    def _note_idle(self, key: tuple[str, str], now_ns: int) -> None:
        if self._idle[key].is_long(now_ns):
            self._kv_after_idle.setdefault(key, deque(maxlen=MOST_PROCESSES)).append(self._idle[key].usage)

    def on_state(self, row: StateRow) -> None:
        if row.get("to") in ("dead", "restarting", "terminated"):  # the figures of a new process start again
            # The old process's figures are still judged, at the end of the run for example: the new one's first drop them.
            for key in self._idle:
                self._note_idle(key, row["at_ns"])
            self._idle.clear()
            self._restarted = True
            self._phase = _Phase()

    def poll(self, now_ns: int) -> list[Failure]:
        self._latencies(now_ns)
        self._handles(now_ns)
        self._kv_cache(now_ns)
        return super().poll(now_ns)

    def _latencies(self, now_ns: int) -> None:
        phase = self._phase
        if not all(stable_queue(phase.steady(counts)) for counts in (phase.running, phase.waiting)):
            return
        in_flight = phase.steady(phase.in_flight)
        for name, samples, at_least in (
            ("TTFT", self._phase.ttft, _TTFT_AT_LEAST_S),
            ("time per output token", self._phase.tpot, _TPOT_AT_LEAST_S),
        ):
            trend = latency_trend(samples.points(), in_flight, at_least=at_least)
            if trend is not None:
                title = f"{name} rises under constant load: {1000 * max(0.0, trend.begin):.0f} ms "
                title += f"to {1000 * trend.end:.0f} ms in {trend.span_s:.0f} s"
                remedy = "Compare with a restarted server. Check its memory, KV cache and queues over this time."
                self.report_once(from_figures("latency_drift", "degraded", title, remedy, now_ns, name))

    def _handles(self, now_ns: int) -> None:
        for (_, pid, kind), (role, samples) in self._phase.handles.items():
            _, name, label, at_least = next(h for h in _HANDLES if h[0] == kind)
            trend = handle_trend(samples.points(), self._phase.in_flight.points(), at_least=at_least)
            if trend is not None:
                title = f"{label.capitalize()} of {role.replace('_', ' ')} (pid {pid}) rise under constant load: "
                title += f"{trend.begin:.0f} to {trend.end:.0f} in {trend.span_s:.0f} s ({trend.per_s * 3600:.0f}/h)"
                remedy = "Restart it before its limit (ulimit) is reached. /proc/PID shows what they are."
                self.report_once(from_figures(name, "degraded", title, remedy, now_ns, f"pid {pid}"))

    def _kv_cache(self, now_ns: int) -> None:
        for replica, engine in {**self._kv_after_idle, **self._idle}:
            values = list(self._kv_after_idle.get((replica, engine), ()))
            if (idle := self._idle.get((replica, engine))) is not None and idle.is_long(now_ns):
                values.append(idle.usage)
            if (rise := kv_rise(values)) is not None:
                title = f"KV cache leaks: use with nothing running rises from {rise[0]:.1%} to {rise[1]:.1%}"
                remedy = "Check aborted requests and disconnected clients: their blocks are not freed."
                self.report_once(from_figures("kv_leak", "degraded", title, remedy, now_ns, f"engine {engine}"))
