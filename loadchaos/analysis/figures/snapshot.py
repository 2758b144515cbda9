"""Values of a run at one moment, for the live view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadchaos.analysis.figures.stalls import Stall
from loadchaos.analysis.incidents.record import RunEnvironment
from loadchaos.analysis.verdict.model import Evidence, FailureResult, KnownIssue
from loadchaos.core.model import Attribution, Severity


@dataclass(frozen=True)
class Percentiles:
    """Latency quantiles in seconds; None without data."""

    p50: float | None = None
    p99: float | None = None
    n: int = 0


@dataclass(frozen=True)
class ReplicaState:
    """State of a replica since `at_ns`, with its signs."""

    replica: str
    state: str
    at_ns: int
    signs: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttackInForce:
    """An attack that began and has not ended."""

    name: str
    replica: str
    at_ns: int


@dataclass
class LiveIncident:
    """An incident as far as it is known. `severity` None: only the ledger tells it; `at_ns` None: it goes on. Its id is
    settled at `settled_from_ns`: the log of a dying server comes a moment later than its signs, and gives a better id.
    """

    n: int
    settled_from_ns: int
    id: str = ""
    folder: str = ""
    open: bool = True
    at_ns: int | None = None
    title: str = ""
    severity: Severity | None = None
    attribution: Attribution = "server"
    known: tuple[KnownIssue, ...] = ()

    def failure(self, severity: Severity) -> FailureResult:
        return FailureResult(
            id=self.id,
            severity=severity,
            title=self.title,
            count=1,
            evidence=Evidence(source=None, line=None, text=None),
            attribution=self.attribution,
            known=self.known,
            remedy="",
            incident=self.folder,
            first_seen=None,
            accepted=False,
        )


@dataclass(frozen=True)
class TrafficLine:
    """Counts, outcomes and latencies of one kind of traffic or endpoint. `latency` has `ttft`, `itl` and `e2e`."""

    name: str
    in_flight: int
    begun: int
    outcomes: tuple[tuple[str, int], ...]
    latency: Mapping[str, Percentiles]


@dataclass(frozen=True)
class SessionLine:
    """Sessions of one kind of traffic, by end; their turns by result. The plan counts them instead of their requests."""

    begun: int
    ends: Mapping[str, int]
    turns: Mapping[str, int]

    @property
    def ended(self) -> int:
        return sum(self.ends.values())


@dataclass(frozen=True)
class Snapshot:
    """Values of one moment. Rates and `recent` latencies cover the last ten whole seconds, the rest the whole
    run; after the load `recent` latencies do, too.
    """

    run: RunEnvironment = field(default_factory=RunEnvironment)
    now_ns: int = 0
    load_s: float | None = None
    load_over: bool = False
    sent_s: float | None = None  # since the first request
    planned: int | None = None
    planned_s: float | None = None
    watched: str = ""  # as in `Terms`
    sessions: Mapping[str, SessionLine] = field(default_factory=dict)  # by traffic, for traffic of sessions
    traffic: tuple[TrafficLine, ...] = ()
    endpoints: tuple[TrafficLine, ...] = ()  # empty unless there are several
    slo_s: Mapping[str, float] = field(default_factory=dict)
    goodput: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # (good, due) by traffic; empty without slo
    recent_goodput: tuple[int, int] = (0, 0)
    in_flight: int = 0
    begun_per_s: float = 0.0
    done_per_s: float = 0.0
    tokens_per_s: float = 0.0
    recent: Mapping[str, Percentiles] = field(default_factory=dict)
    void: Mapping[str, str] = field(default_factory=dict)  # latencies of the run that mean nothing, with the reason
    lag_s: float = 0.0
    oldest_silence_s: float = 0.0
    stall: Stall | None = None  # the longest one beyond its limit
    states: tuple[ReplicaState, ...] = ()
    attacks_in_force: tuple[AttackInForce, ...] = ()
    attacks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    failures: tuple[FailureResult, ...] = ()
    incidents: tuple[LiveIncident, ...] = ()
    server: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    preemptions: float | None = None  # since the run began
    paused: str = ""
    preflight: tuple[tuple[bool, str], ...] = ()

    def server_total(self, name: str) -> float | None:
        """Sum of a server figure over all engines; None where none has it."""
        values = [engine[name] for engine in self.server.values() if name in engine]
        return sum(values) if values else None

    @property
    def fullest_kv_cache(self) -> float | None:
        """Share in use of the fullest KV cache."""
        return max(
            (engine["kv_usage_ratio"] for engine in self.server.values() if "kv_usage_ratio" in engine), default=None
        )
