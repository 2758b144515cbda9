"""Record of an incident as in incident.json, which reports read. The fields are its keys in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from loadchaos.analysis.verdict.model import (
    CandidateLine,
    Evidence,
    Kind,
    KnownIssue,
    VerdictTarget,
    WrongAnswerExample,
)
from loadchaos.core.model import Attribution, Facts, Severity, State
from loadchaos.core.typed_json import IF_KNOWN, IF_SET


@dataclass(frozen=True, kw_only=True)
class ShownFailure:
    """A failure that an incident's logs or answers show."""

    id: str
    title: str
    at_s: float | None
    evidence: Evidence
    process: str | None
    frames: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SentRequest:
    """A request; `age_s` is how long it was in flight."""

    image_file: str = field(default="", metadata=IF_SET)
    id: str
    step: int
    traffic: str
    tokens: int | None
    images: int
    edge: int | None
    age_s: float


@dataclass(frozen=True, kw_only=True)
class SentBefore:
    """Requests of a traffic that were sent before the incident."""

    begun: int
    ok: int


@dataclass(frozen=True, kw_only=True)
class NearAttack:
    """An attack in force at the time of an incident, or shortly before."""

    attack: str
    n: int
    kind: str
    effects: tuple[str, ...]
    began_before_s: float | None


@dataclass(frozen=True, kw_only=True)
class LineWindow:
    """First and last line of a log that belong to an incident."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """Event of an incident, in seconds from the start of the load."""

    at_s: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class ReadingRecord:
    """A reading of an engine or a device; None: not among its figures."""

    at_s: float
    whose: str
    requests_running: float | None = field(default=None, metadata=IF_KNOWN)
    requests_waiting: float | None = field(default=None, metadata=IF_KNOWN)
    kv_usage_ratio: float | None = field(default=None, metadata=IF_KNOWN)
    generation_tokens_total: float | None = field(default=None, metadata=IF_KNOWN)
    preemptions_total: float | None = field(default=None, metadata=IF_KNOWN)
    process_rss_bytes: float | None = field(default=None, metadata=IF_KNOWN)
    gpu_memory_used_bytes: float | None = field(default=None, metadata=IF_KNOWN)
    gpu_memory_free_bytes: float | None = field(default=None, metadata=IF_KNOWN)
    gpu_utilisation_ratio: float | None = field(default=None, metadata=IF_KNOWN)
    gpu_temperature_c: float | None = field(default=None, metadata=IF_KNOWN)
    gpu_power_w: float | None = field(default=None, metadata=IF_KNOWN)
    gpu_throttle_reasons: float | None = field(default=None, metadata=IF_KNOWN)
    gpu_xid_last: float | None = field(default=None, metadata=IF_KNOWN)
    host_memory_available_bytes: float | None = field(default=None, metadata=IF_KNOWN)
    host_memory_total_bytes: float | None = field(default=None, metadata=IF_KNOWN)
    disk_free_bytes: float | None = field(default=None, metadata=IF_KNOWN)

    @property
    def is_of_engine(self) -> bool:
        return self.requests_running is not None or self.kv_usage_ratio is not None


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """Server, load and loadchaos of a run, as far as its rows tell them; read from the rows together, or the first."""

    target: VerdictTarget | None = None
    profile: str | None = None
    argv: tuple[str, ...] = ()
    version: str | None = None
    seed: int | None = None
    command: tuple[str, ...] = ()
    facts: Facts | None = None
    flags: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class IncidentRecord:
    """One incident, without bodies and raw files. `environment` is as the rows have it (`RunEnvironment` reads it),
    `exit` the row of the process that ended.
    """

    schema: Literal[1]
    n: int
    id: str
    folder: str
    kind: Kind
    replica: str
    severity: Severity
    title: str
    attribution: Attribution
    layer: str = field(default="", metadata=IF_SET)
    opened_at_s: float | None
    noticed_at_s: float | None
    back_at_s: float | None
    closed_at_s: float | None
    opened_ns: int
    closed_ns: int | None
    recovered_after_s: float | None
    state: State | None
    signs: tuple[str, ...]
    known: tuple[KnownIssue, ...]
    remedy: str
    evidence: Evidence
    frames: tuple[str, ...]
    process: str | None
    candidates: tuple[CandidateLine, ...]
    exit: Mapping[str, Any] | None
    causes: tuple[ShownFailure, ...]
    echoes: tuple[ShownFailure, ...]
    beside: tuple[str, ...]
    lost_requests: int
    lost: Mapping[str, int]
    wrong_answers: tuple[WrongAnswerExample, ...]
    in_flight_at_death: int
    in_flight: tuple[SentRequest, ...]
    examples: tuple[SentRequest, ...]
    admitted: tuple[SentRequest, ...]
    attacks: tuple[NearAttack, ...]
    sent_before: Mapping[str, SentBefore]
    log_lines: Mapping[str, LineWindow]
    figures: tuple[ReadingRecord, ...]
    metrics_window_ns: tuple[int, ...]
    timeline: tuple[TimelineEntry, ...]
    environment: Mapping[str, Any]

    before_load: ClassVar[bool] = False
