"""Result of a capacity search as in capacity.json, which its page, texts and metrics read. The fields are its keys.
schemas/capacity.json is generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.core import typed_json
from loadchaos.core.model import ServerName
from loadchaos.core.typed_json import IF_KNOWN, Keywords

SCHEMA: Literal[1] = 1

Unit = Literal["rate", "concurrency"]
"""Unit of a load: requests per second, or users."""


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
