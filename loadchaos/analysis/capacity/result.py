"""Result of a capacity search as in capacity.json, which its page, texts and metrics read. The fields are its keys.
schemas/capacity.json is generated from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal, NamedTuple

from loadchaos.core import typed_json
from loadchaos.core.model import ServerName
from loadchaos.core.typed_json import IF_KNOWN, IF_SET, Keywords

SCHEMA: Literal[1] = 1

Unit = Literal["rate", "concurrency"]
"""Unit of a load: requests per second, or users."""
StepStatus = Literal["undecided", "met", "not_met", "client"]


@dataclass(frozen=True, kw_only=True)
class SearchedPhase:
    """The phase of the profile that was searched, and its kinds of traffic."""

    number: Annotated[int, "its place in load, from 0; repeated phases are counted as often as they repeat"] = 0
    of: Annotated[int, "number of phases of the profile"] = 1
    traffic: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of the command, by the names of its parameters, for `--resume`. Secrets in them are redacted."""

    profile: str = ""
    overrides: tuple[str, ...] = ()
    target: str | None = None
    launch: str | None = None
    limits: str | None = None
    goal: str | None = None
    by: str | None = None
    start: float | None = None
    most: float | None = None
    tolerance: str | None = None
    at_least: float | None = None
    seed: int | None = None
    model: str | None = None
    phase: int | None = None
    admin_url: str | None = None
    api_key_env: str | None = None
    headers: tuple[str, ...] = ()
    ca: str | None = None
    insecure: bool = False
    shared: bool = False
    server_log: tuple[str, ...] = ()
    tokenizer: str | None = None
    authorize: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CapacityAnswer:
    """The highest load that meets the goal is between `low` and `high`; `interval` is that of the long run."""

    capacity: Annotated[float | None, "the same as low"]
    low: Annotated[float | None, "highest load that was proved to meet the goal"]
    high: Annotated[float | None, "lowest load that was proved not to meet it"]
    client_limit: Annotated[float | None, "lowest load at which our own client was the limit"]
    known: bool
    at_least: Annotated[bool, "true: no load was proved to fail"]
    why: str
    interval: Annotated[tuple[float | None, ...], "interval of the capacity in the long run; null: this end is open"]
    narrow: Annotated[bool, "true: the interval is within the tolerance"]

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Both ends of the interval; None: open, or not known."""
        return (self.interval[0], self.interval[1]) if len(self.interval) == 2 else (None, None)


@dataclass(frozen=True, kw_only=True)
class Knee:
    """The highest load at which the server keeps up, and the next one tried."""

    load: float
    next: float


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """The highest throughput; `reached` is False where no step overloaded the server."""

    reached: bool = False
    requests_per_s: float | None = None
    offered_per_s: Annotated[float | None, "requests per second that were due meanwhile"] = field(
        default=None, metadata=IF_KNOWN
    )
    output_tokens_per_s: float | None = None
    load: float | None = None


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The resource that limits the load, with the figures that show it."""

    resource: str = ""
    load: float | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchFailure:
    """A failure that runs of the search had."""

    id: str
    title: str
    severity: str
    steps: int
    run: str | None = None
    incident: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShortDecision:
    """Figures of a step, before its queue was found to be too long in the long run."""

    status: StepStatus
    leans: bool | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ClientFigures:
    """Our own client in a step: CPU use of a worker, delays of its sends, and why it limits the load, if it does."""

    cpu_share: float | None = None
    limit: str | None = None
    send_delay_p50_s: float | None = None
    send_delay_p99_s: float | None = None


def _column(head: str = "") -> Mapping[str, str]:
    """Metadata: the field is a column of capacity.csv; with a head, also of the table of terminal and page."""
    return {"column": head}


@dataclass(frozen=True, kw_only=True)
class CapacityStep:
    """One load that was tried. Figures are None where nothing was measured. A field `ttft_p95_s` is that quantile of
    the TTFT: a latency is measured, written, shown and exported because its field is here.
    """

    load: float = field(metadata=_column())
    status: StepStatus = field(metadata=_column())
    leans: Annotated[bool | None, "true: the measured share reaches the goal"] = field(default=None, metadata=_column())
    requests: int = field(default=0, metadata=_column("requests"))
    good: int | None = field(default=None, metadata=_column())
    goodput: float | None = field(default=None, metadata=_column("goodput"))
    goodput_low: float | None = field(default=None, metadata=_column())
    goodput_high: float | None = field(default=None, metadata=_column())
    requests_per_s: float | None = field(default=None, metadata=_column("completed/s"))
    input_tokens_per_s: float | None = field(default=None, metadata=_column())
    output_tokens_per_s: float | None = field(default=None, metadata=_column("tokens/s"))
    ttft_p50_s: float | None = field(default=None, metadata=_column("TTFT p50"))
    ttft_p99_s: float | None = field(default=None, metadata=_column("TTFT p99"))
    itl_p50_s: float | None = field(default=None, metadata=_column())
    itl_p99_s: float | None = field(default=None, metadata=_column())
    tpot_p50_s: float | None = field(default=None, metadata=_column("TPOT p50"))
    tpot_p99_s: float | None = field(default=None, metadata=_column())
    e2e_p50_s: float | None = field(default=None, metadata=_column("E2E p50"))
    e2e_p99_s: float | None = field(default=None, metadata=_column())
    queue_growth: Annotated[float | None, "share of the arrivals that stays behind"] = field(
        default=None, metadata=_column()
    )
    seconds: float | None = field(default=None, metadata=_column())
    why: str = field(default="", metadata=_column())
    run: Annotated[str | None, "run folder of the step"] = field(default=None, metadata=_column())
    scout: Annotated[bool, "true: a short step, which never proves that its load meets the goal"] = False
    queue_grows: bool = False
    warm_up_s: float | None = None
    measured_s: float | None = None
    unfinished: int | None = None
    not_sent: int | None = None
    overdispersion: float | None = None
    over: Annotated[Mapping[str, int], "requests over each limit"] = field(default_factory=dict)
    completed: int = 0
    offered: Annotated[int, "requests that were due in completing_s, without those that failed by themselves"] = 0
    completing_s: float = 0.0
    completion_variation: float | None = None
    client: ClientFigures = ClientFigures()
    server: Mapping[str, float] = field(default_factory=dict)
    began: Annotated[str | None, "UTC"] = None
    ended: Annotated[str | None, "UTC"] = None
    measured: ShortDecision | None = field(default=None, metadata=IF_KNOWN)
    proved: Annotated[
        tuple[float | None, ...],
        "answer after this step: highest load proved to meet the goal, lowest proved not to",
    ] = field(default=(), metadata=IF_SET)

    def figure(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value

    def as_measured(self) -> CapacityStep:
        """The step as its own figures decided it."""
        own = self.measured
        return self if own is None else replace(self, status=own.status, leans=own.leans, why=own.why, measured=None)


COLUMNS: Mapping[str, str] = {f.name: f.metadata["column"] for f in fields(CapacityStep) if "column" in f.metadata}
"""Fields of a step in its tables, in order, with the head where terminal and page show the field."""


class Latency(NamedTuple):
    """Field of a step with a quantile of a latency: `ttft_p50_s`, `ttft`, `p50`."""

    field: str
    kind: str
    statistic: str


LATENCIES = tuple(
    Latency(f.name, *found.groups())
    for f in fields(CapacityStep)
    if (found := re.fullmatch(r"(ttft|itl|tpot|e2e)_(p\d+)_s", f.name)) is not None
)


@dataclass(frozen=True, kw_only=True)
class CurrentStep:
    """The step in progress."""

    load: float | None = None
    requests: int | None = None
    goodput: float | None = None


@dataclass(frozen=True, kw_only=True)
class CapacityResult:
    """A search so far; `verdict` is None until it has ended."""

    schema: Literal[1] = SCHEMA
    verdict: Annotated[Literal["pass", "fail", "unknown", "error"] | None, "null: the search is not finished"]
    exit_code: int | None
    target: str
    server: ServerName
    started: str
    seconds: float
    ended: bool
    ended_by: Annotated[str, "why the search ended early; empty: it did not"]
    phase: Annotated[SearchedPhase, "the phase of the profile whose traffic was sent"]
    by: Unit
    goal: Annotated[float, Keywords(exclusiveMinimum=0, exclusiveMaximum=1)]
    slo_s: Mapping[str, float]
    budget_s: float
    tolerance: float
    at_least: float | None
    answer: CapacityAnswer
    knee: Knee | None
    saturation: Saturation
    limit: Limit
    failures: tuple[SearchFailure, ...]
    wanted: SearchOptions = SearchOptions()
    steps: tuple[CapacityStep, ...]
    current: CurrentStep | None = field(default=None, metadata=IF_KNOWN)

    @property
    def by_load(self) -> list[CapacityStep]:
        return sorted(self.steps, key=lambda step: step.load)


def schema() -> str:
    """JSON Schema of a search, as committed in schemas/capacity.json."""
    loads = "Loads are requests per second (by: rate) or users (by: concurrency); fields that end in _s are seconds."
    return typed_json.document(CapacityResult, "capacity.json", "the result of a capacity search", loads)


if __name__ == "__main__":
    print(schema(), end="")
