"""Result of a capacity search as in capacity.json, which its page, texts and metrics read. The fields are its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from loadchaos.core import typed_json
from loadchaos.core.typed_json import IF_KNOWN, IF_SET

Unit = Literal["rate", "concurrency"]
"""Unit of a load: requests per second, or users."""
StepStatus = Literal["undecided", "met", "not_met", "client"]


@dataclass(frozen=True, kw_only=True)
class SearchedServer:
    """The server; None: not known yet, or by an older version."""

    dialect: str | None = None
    version: str | None = None
    model: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in (self.dialect, self.version, self.model) if part)


@dataclass(frozen=True, kw_only=True)
class SearchedPhase:
    """The phase of the profile that was searched, and its kinds of traffic."""

    number: int = 0
    of: int = 1
    traffic: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CapacityAnswer:
    """The highest load that meets the goal is between `low` and `high`; `interval` is that of the long run."""

    capacity: float | None = None
    low: float | None = None
    high: float | None = None
    client_limit: float | None = None
    known: bool = False
    at_least: bool = False
    why: str = ""
    interval: tuple[float | None, ...] = ()
    narrow: bool = False

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
class CapacityStep:
    """One load that was tried. Figures are None where nothing was measured."""

    load: float
    status: StepStatus
    why: str = ""
    scout: bool = False
    leans: bool | None = None
    seconds: float | None = None
    requests: int | None = None
    goodput: float | None = None
    goodput_low: float | None = None
    goodput_high: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None
    e2e_p50_s: float | None = None
    e2e_p99_s: float | None = None
    run: str | None = None
    began: str | None = None
    ended: str | None = None
    measured: ShortDecision | None = None
    proved: tuple[float | None, ...] = ()

    def figure(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value


@dataclass(frozen=True, kw_only=True)
class CurrentStep:
    """The step in progress."""

    load: float | None = None
    requests: int | None = None
    goodput: float | None = None


@dataclass(frozen=True, kw_only=True)
class CapacityResult:
    """A search so far; `verdict` is None until it has ended."""

    verdict: Literal["pass", "fail", "unknown", "error"] | None = None
    exit_code: int | None = None
    target: str = ""
    server: SearchedServer = SearchedServer()
    started: str = ""
    seconds: float = 0.0
    ended: bool = False
    ended_by: str = ""
    phase: SearchedPhase = SearchedPhase()
    by: Unit
    goal: float
    slo_s: Mapping[str, float] = field(default_factory=dict)
    at_least: float | None = None
    answer: CapacityAnswer
    knee: Knee | None = None
    saturation: Saturation = Saturation()
    limit: Limit = Limit()
    failures: tuple[SearchFailure, ...] = ()
    wanted: Mapping[str, Any] = field(default_factory=dict, metadata=IF_SET)
    steps: tuple[CapacityStep, ...] = ()
    current: CurrentStep | None = field(default=None, metadata=IF_KNOWN)

    @classmethod
    def from_json(cls, data: object) -> CapacityResult:
        return typed_json.from_json(cls, data)

    @property
    def by_load(self) -> list[CapacityStep]:
        return sorted(self.steps, key=lambda step: step.load)
