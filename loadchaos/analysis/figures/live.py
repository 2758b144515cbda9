"""Fold ledger rows into the gauges, states and findings of a run.

The live view and the Prometheus exporter share them.

Outcomes come from end rows, states from state rows, failures and incidents from the follower's findings. The same rows
give the same totals, so a restarted follower shows the same numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.figures.sessions import SESSION_ENDS
from loadchaos.analysis.figures.snapshot import (
    AttackInForce,
    LiveIncident,
    Percentiles,
    ReplicaState,
    SessionLine,
    Snapshot,
    TrafficLine,
)
from loadchaos.analysis.figures.time_bucket import Bucket, numbers_of
from loadchaos.analysis.incidents.attribution import result_of
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.incidents.record import RunEnvironment
from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.core.endpoint_groups import merged_latency, several_endpoints
from loadchaos.core.goodput import counts_for_goodput, is_good
from loadchaos.core.histogram import LogHistogram, bucket_middle
from loadchaos.core.latency import LOWER_BOUNDS, sample_of
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import (
    AttackRow,
    BeginRow,
    ConversationRow,
    DeviceRow,
    EndRow,
    FailureRow,
    GapRow,
    GateRow,
    HeartbeatRow,
    IncidentRow,
    MetricsRow,
    MissedRow,
    PreflightRow,
    ProcessRow,
    RunRow,
    StateRow,
)
from loadchaos.core.limits import SCRAPE_EVERY_S
from loadchaos.core.model import OUTCOMES, Row, Terms
from loadchaos.core.typed_json import from_json
from loadchaos.core.units import NS_PER_S, seconds_of

WINDOW_S = 10
_MOST_DEVICES = 256
STALE_S = 5 * SCRAPE_EVERY_S

# vLLM's own bounds (its /metrics page, 0.32), so that a panel can compare both sides; ITL has finer ones.
TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
ITL_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
E2E_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_BOUNDS = {"ttft": TTFT_BOUNDS_S, "itl": ITL_BOUNDS_S, "tpot": ITL_BOUNDS_S, "e2e": E2E_BOUNDS_S}


_SETTLES_NS = 4 * NS_PER_S


class BucketHistogram:
    """Prometheus histogram: counts per bucket, sum, one example per bucket."""

    __slots__ = ("bounds", "counts", "exemplars", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.exemplars: dict[int, tuple[str, float]] = {}
        self.sum_s = 0.0

    def add(self, value_s: float, times: int = 1, request_id: str = "") -> None:
        i = bisect_left(self.bounds, value_s)
        self.counts[i] += times
        self.sum_s += value_s * times
        if request_id:
            self.exemplars[i] = (request_id, value_s)


class _Bounded:
    """Histograms with the bounds of the metrics page, for one kind of traffic. `sessions` are those that finished, and those
    lost to a timeout as lower bounds.
    """

    __slots__ = ("latency", "sessions")

    def __init__(self) -> None:
        self.latency = {kind: BucketHistogram(bounds) for kind, bounds in _BOUNDS.items()}
        self.sessions = BucketHistogram(E2E_BOUNDS_S)


class LiveFigures(RowFold):
    """Gauges, states, attacks and findings of a run, and its last ten seconds.

    `snapshot` gives the values of the live view; the exporter reads the totals directly.

    Args:
        figures: figures of the same rows that are folded elsewhere, each row before it comes here; None: they are folded
            here.
    """

    def __init__(self, figures: RunFigures | None = None) -> None:
        self.figures = figures if figures is not None else RunFigures()
        self._folds_figures = figures is None
        self.run = RunEnvironment()
        self.terms = Terms(profile="")
        self._duration_s: float | None = None
        self.now_ns = 0
        self.load_begin_ns: int | None = None
        self.load_end_ns: int | None = None
        self._open_sessions: set[str] = set()
        self.ended = False
        self.bounded: defaultdict[str, _Bounded] = defaultdict(_Bounded)
        self._finished = False
        self.states: dict[str, ReplicaState] = {}
        self.attacks: Counter[tuple[str, str]] = Counter()  # (name, ok | failed | skipped)
        self.in_force: dict[tuple[str, int | None, str | None], AttackInForce] = {}
        self.failures: dict[tuple[str, str], FailureResult] = {}
        self._deaths: dict[tuple[str, str], set[str]] = {}
        self.incidents: dict[int, LiveIncident] = {}
        self.server: dict[tuple[str, str], dict[str, float]] = {}  # (replica, engine)
        self._server_ns: dict[tuple[str, str], int] = {}
        self._preempted_before: dict[tuple[str, str], float] = {}
        self.workers: dict[str, HeartbeatRow] = {}  # newest heartbeat of each
        self.processes: dict[tuple[str, int], tuple[str, int]] = {}  # (replica, pid): role, resident bytes
        self.devices: dict[tuple[str, str], dict[str, float]] = {}  # (host, device): the newest figures
        self.gaps_s: dict[str, float] = {}
        self._gap_known_ns: dict[tuple[str, str], int] = {}  # (replica, source): up to when
        self.gate = ""
        self.preflight: list[tuple[bool, str]] = []
        self._window: dict[int, Bucket] = {}

    def fold(self, row: Row) -> None:
        if self._folds_figures:
            self.figures.fold(row)
        kind = str(row.get("row"))
        at = row.get("at_ns")
        if isinstance(at, int) and at > self.now_ns and kind not in {"failure", "incident"}:
            self.now_ns = at
        super().fold(row)

    def finish(self) -> None:
        """End the fold: no failure id changes after this, and requests without an end are `unfinished`."""
        self._finished = True
        if self._folds_figures:
            self.figures.requests.finish()

    # -- requests ------------------------------------------------------------------------------------------------

    def on_conversation(self, row: ConversationRow) -> None:
        name = str(row.get("id"))
        if row.get("what") == "begin":
            self._open_sessions.add(name)
        elif name in self._open_sessions:
            self._open_sessions.remove(name)
            timed = row.get("end") == "finished" or row.get("why") in LOWER_BOUNDS
            if timed and not self.figures.warm_up.covers(row):
                e2e_s = (int(row["at_ns"]) - int(row["due_ns"])) / NS_PER_S
                self.bounded[str(row.get("traffic"))].sessions.add(e2e_s, request_id=name[:64])

    def on_begin(self, row: BeginRow) -> None:
        self._bucket(row).begun += 1

    def on_end(self, row: EndRow) -> None:
        bucket = self._bucket(row)
        bucket.outcomes[str(row.get("outcome"))] += 1
        slo_s = self.figures.slo_s
        if slo_s and counts_for_goodput(row) and not self.figures.warm_up.covers(row):
            bucket.due += 1
            bucket.good += is_good(row, slo_s)
        if (sample := sample_of(row)) is None:
            return
        bucket.latency.add(sample)
        request, bounded = str(row.get("request_id") or row.get("id") or "")[:64], self.bounded[str(row.get("traffic"))]
        for kind, value in (("ttft", sample.ttft_ns), ("tpot", sample.tpot_ns), ("e2e", sample.e2e_ns)):
            if value is not None:
                bounded.latency[kind].add(value / NS_PER_S, request_id=request)
        for index, count in sample.gaps.counts.items():
            bounded.latency["itl"].add(bucket_middle(index) / NS_PER_S, count)

    def on_missed(self, row: MissedRow) -> None:
        count = int(row.get("count") or 1)
        if self.figures.slo_s and row.get("why") == "no_slot" and not self.figures.warm_up.covers(row):
            self._bucket(row).due += count
        self._bucket(row).outcomes["missed"] += count

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self.workers[str(row.get("file", ""))] = row
        self._bucket(row).on_heartbeat(row)

    # -- the server ----------------------------------------------------------------------------------------------

    def on_state(self, row: StateRow) -> None:
        replica = str(row.get("replica") or "")
        if row.get("engine") is not None:
            replica = f"{replica} engine {row['engine']}"
        signs = tuple(str(s) for s in row.get("signs") or ())
        self.states[replica] = ReplicaState(replica, str(row.get("to")), int(row.get("at_ns") or 0), signs)

    def on_metrics(self, row: MetricsRow) -> None:
        key = str(row.get("replica") or ""), str(row.get("engine") or "0")
        self.server[key], self._server_ns[key] = numbers_of(row), int(row.get("at_ns") or 0)
        preemptions = self.server[key].get("preemptions_total", 0.0)
        if preemptions < self._preempted_before.setdefault(key, preemptions):
            self._preempted_before[key] = 0.0  # a new server

    def on_device(self, row: DeviceRow) -> None:
        key = str(row.get("host") or ""), str(row.get("device") or "")
        if key in self.devices or len(self.devices) < _MOST_DEVICES:
            self.devices[key] = self.devices.get(key, {}) | numbers_of(row)

    def on_gap(self, row: GapRow) -> None:
        # A long gap has several rows with its length so far: only the part since the last one is added.
        source, at = str(row.get("source")), int(row.get("at_ns") or 0)
        key = str(row.get("replica") or ""), source
        since = max(at - round(float(row.get("seconds") or 0) * NS_PER_S), self._gap_known_ns.get(key, 0))
        self.gaps_s[source] = self.gaps_s.get(source, 0.0) + max(0, at - since) / NS_PER_S
        self._gap_known_ns[key] = at

    def on_process(self, row: ProcessRow) -> None:
        key = str(row.get("replica") or ""), int(row.get("pid") or 0)
        if row.get("what") == "gone":
            self.processes.pop(key, None)
        else:
            self.processes[key] = str(row.get("role")), int(row.get("rss_bytes") or 0)

    # -- the run -------------------------------------------------------------------------------------------------

    def on_run(self, row: RunRow) -> None:
        what, at = row.get("what"), int(row.get("at_ns") or 0)
        if what == "begin":
            self.run, self._duration_s = from_json(RunEnvironment, row), row.get("duration_s")
            self.terms = from_json(Terms, row.get("terms"))
        elif what == "load_begin":
            self.load_begin_ns = at
        elif what == "load_end":
            self.load_end_ns = at
        elif what == "end":
            self.ended = True

    def on_gate(self, row: GateRow) -> None:
        self.gate = "" if row.get("open") else str(row.get("why") or "paused")

    def on_preflight(self, row: PreflightRow) -> None:
        self.preflight.append((bool(row.get("ok")), str(row.get("text") or row.get("name"))))

    def on_attack(self, row: AttackRow) -> None:
        name, what = str(row.get("attack")), row.get("what")
        key = (name, row.get("n"), row.get("replica"))
        if what == "begin":
            self.in_force[key] = AttackInForce(name, str(row.get("replica") or ""), int(row.get("at_ns") or 0))
        elif what in {"end", "undo"}:
            self.in_force.pop(key, None)
        if (result := result_of(row)) is not None:
            self.attacks[name, result] += 1

    # -- findings ------------------------------------------------------------------------------------------------

    def on_failure(self, row: FailureRow) -> None:
        self.add_failure(from_json(FailureResult, row))

    def add_failure(self, failure: FailureResult) -> None:
        """Add a failure. A later one with the same id names another incident, or has a newer count."""
        key = failure.id, failure.attribution
        deaths = self._deaths.setdefault(key, set())
        deaths.update(failure.incidents or ())
        self.failures[key] = replace(failure, count=max(len(deaths), failure.count or 1))

    def count_failures(self, failures: Iterable[FailureResult]) -> None:
        """Update failures and their counts from all that the judge knows now. Counts never decrease: Prometheus would
        take that for a restart. Deaths are counted from their own rows: an open death can still be renamed by its log,
        and a count under the first name could not be undone.
        """
        counted: Counter[tuple[str, str]] = Counter()
        for failure in failures:
            if not failure.incidents:
                key = failure.id, failure.attribution
                counted[key] += failure.count or 1
                self.failures.setdefault(key, failure)
        for name, count in counted.items():
            self.failures[name] = replace(self.failures[name], count=max(count, self.failures[name].count or 1))

    def on_incident(self, row: IncidentRow) -> None:
        incident = self._incident(row.get("n"))
        incident.id, incident.folder = row.get("id") or "", row.get("folder") or ""
        incident.open, incident.at_ns = row["what"] == "open", row.get("at_ns")

    def name_incidents(self, incidents: Iterable[Incident]) -> None:
        """Take over the current names of incidents: the ledger has the final ones when they close."""
        for i in incidents:
            if i.kind != "failure":
                named, incident = i.named_by(), self._incident(i.n)
                incident.id, incident.folder, incident.open = i.id, f"incidents/{i.folder}", i.closed_ns is None
                incident.severity = "engine_death" if i.shown_kind == "death" else named.severity
                incident.title, incident.known, incident.attribution = named.title, tuple(named.known), i.attribution

    def close_incidents(self, failure: FailureResult) -> None:
        """Add the incidents of a failure of the verdict, all of which are over."""
        for name in failure.incidents or ():
            home = name.rsplit("/", 1)[-1]
            if home[:3].isdigit():
                incident = self._incident(int(home[:3]))
                incident.id, incident.folder, incident.open = failure.id, f"incidents/{home}", False
                incident.severity, incident.attribution = failure.severity, failure.attribution
                incident.known = failure.known

    def _incident(self, n: int) -> LiveIncident:
        return self.incidents.setdefault(n, LiveIncident(n, self.now_ns + _SETTLES_NS))

    def all_failures(self) -> list[FailureResult]:
        names = {name for name, _ in self.failures}
        open_incidents = [
            i.failure(i.severity)
            for i in self.incidents.values()
            if i.severity and i.open and i.id not in names and self._settled(i)
        ]
        return [*self.failures.values(), *open_incidents]

    def _settled(self, incident: LiveIncident) -> bool:
        """True once the id of an incident is final enough to show."""
        named = any(name == incident.id for name, _ in self.failures)
        return named or self._finished or not incident.open or self.now_ns >= incident.settled_from_ns

    # -- reading -------------------------------------------------------------------------------------------------

    def _bucket(self, row: BeginRow | EndRow | MissedRow | HeartbeatRow) -> Bucket:
        second = int(row.get("at_ns") or self.now_ns) // NS_PER_S
        bucket = self._window.get(second)
        if bucket is None:
            bucket = self._window[second] = Bucket()
            for old in [s for s in self._window if s < self.now_ns // NS_PER_S - WINDOW_S]:
                del self._window[old]
        return bucket  # one that is too old is folded into nothing

    def window(self, now_ns: int | None = None) -> Bucket:
        """Merge the last WINDOW_S whole seconds before `now_ns` into one bucket. By default `now_ns` is the time of the
        newest row.
        """
        last = (now_ns or self.now_ns) // NS_PER_S
        recent = Bucket()
        for second in sorted(self._window):
            if last - WINDOW_S <= second < last:
                recent.merge(self._window[second])
        return recent

    def fresh_server(self, now_ns: int | None = None) -> dict[tuple[str, str], dict[str, float]]:
        oldest = max(now_ns or 0, self.now_ns) - int(STALE_S * NS_PER_S)
        return {key: values for key, values in self.server.items() if self._server_ns[key] >= oldest}

    def _preemptions(self, server: Mapping[tuple[str, str], Mapping[str, float]]) -> float | None:
        now = {key: values["preemptions_total"] for key, values in server.items() if "preemptions_total" in values}
        return sum(n - self._preempted_before[key] for key, n in now.items()) if now else None

    def _shown_latency(self, recent: Bucket) -> Iterable[tuple[str, LogHistogram]]:
        """Latencies of the last seconds; once the load is over those of the whole run, as the verdict has them."""
        over = self.load_end_ns is not None
        return self.figures.answers.all_latency().items() if over else recent.latency.items()

    def _worst(self, key: Literal["lag_ns", "oldest_silence_ns"]) -> int:
        return max((int(w.get(key) or 0) for w in self.workers.values()), default=0)

    def snapshot(self, now_ns: int | None = None) -> Snapshot:
        now = max(now_ns or 0, self.now_ns)
        recent = self.window(now)
        begun, terms, figures, server = self.load_begin_ns, self.terms, self.figures, self.fresh_server(now)
        requests, goodput = figures.requests, figures.goodput.parts()
        endpoints = several_endpoints(figures.endpoints, requests.traffic)
        limits_s = [s for s in (terms.planned_s, self._duration_s) if s]
        until = self.load_end_ns or now
        # A run that began less than ten seconds ago.
        span = min(WINDOW_S, max(1, now // NS_PER_S - begun // NS_PER_S)) if begun is not None else WINDOW_S
        return Snapshot(
            run=self.run,
            now_ns=now,
            load_s=(until - begun) / NS_PER_S if begun is not None else None,
            load_over=self.load_end_ns is not None,
            sent_s=(until - requests.first_sent_ns) / NS_PER_S if requests.first_sent_ns is not None else None,
            planned=terms.planned_requests,
            sessions={name: _session_line(counts) for name, counts in figures.sessions.by_traffic.items()},
            slo_s=figures.slo_s,
            goodput={name: (part.n, part.whole) for name, part in goodput.items() if name and part.whole},
            recent_goodput=(recent.good, recent.due),
            planned_s=min(limits_s, default=None),
            watched=self.terms.watched,
            traffic=tuple(_line(name, [name], figures) for name in requests.traffic),
            endpoints=tuple(_line(name, group, figures) for name, group in endpoints.items()),
            in_flight=len(requests.in_flight),
            begun_per_s=recent.begun / span,
            done_per_s=(recent.outcomes.total() - recent.outcomes["missed"]) / span,
            tokens_per_s=recent.events * figures.answers.event_tokens.mean / span,
            recent={kind: percentiles(hist) for kind, hist in self._shown_latency(recent)},
            void=figures.answers.all_latency().void(),
            lag_s=self._worst("lag_ns") / NS_PER_S,
            oldest_silence_s=self._worst("oldest_silence_ns") / NS_PER_S,
            stall=figures.stalls.told,
            states=tuple(self.states.values()),
            attacks_in_force=tuple(self.in_force.values()),
            attacks=dict(self.attacks),
            failures=tuple(self.all_failures()),
            incidents=tuple(i for i in self.incidents.values() if self._settled(i)),
            server=server,
            preemptions=self._preemptions(server),
            paused=self.gate,
            preflight=tuple(self.preflight),
        )


def _line(name: str, traffics: Sequence[str], figures: RunFigures) -> TrafficLine:
    parts = [figures.requests.traffic[traffic] for traffic in traffics]
    latency = merged_latency(map(figures.answers.latency.get, traffics))
    return TrafficLine(
        name,
        sum(t.in_flight for t in parts),
        sum(t.begun for t in parts),
        tuple((o, n) for o in OUTCOMES if (n := sum(t.outcomes[o] for t in parts))),
        {kind: percentiles(hist) for kind, hist in latency.items()},
    )


def _session_line(counts: Mapping[str, int]) -> SessionLine:
    turns = {"answered": counts["turns"], **{how: counts[f"turns_{how}"] for how in ("lost", "left", "cut")}}
    return SessionLine(counts["sessions"], {end: n for end in SESSION_ENDS if (n := counts[end])}, turns)


def percentiles(hist: LogHistogram) -> Percentiles:
    """p50 and p99 in seconds of a histogram in nanoseconds."""
    return Percentiles(seconds_of(hist.quantile(0.5)), seconds_of(hist.quantile(0.99)), hist.n)
