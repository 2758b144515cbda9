"""The parts of a profile as models: target, traffic, phases and the rest, each field with its unit and bounds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from loadchaos.model import Outcome
from loadchaos.plan import trace
from loadchaos.units import Bytes, DurationS, IntRange, Range, RatePerS

Law = Literal["constant", "poisson", "gamma", "ramp", "step", "spike", "day"]
_SHAPED_BY: Mapping[str, tuple[Law, ...]] = {
    "burstiness": ("gamma",),
    "to": ("ramp", "step", "spike", "day"),
    "steps": ("step",),
    "at": ("spike", "day"),
    "width": ("spike",),
    "period": ("day",),
}
"""Which laws a key of an open phase shapes; with any other it would be written in vain."""
DEFAULT_IN_FLIGHT = 256
"""Slots of an open phase that names none."""


class Part(BaseModel):
    """Base of every part: unknown keys are mistakes, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _version(value: object) -> object:
    if isinstance(value, float | int) and not isinstance(value, bool):
        raise ValueError(f'a version is text, or 0.20 becomes 0.2: write "{value}"')
    return value


Version = Annotated[str, BeforeValidator(_version)]


class Embedded(Part):
    """The embedded server: which one it plays, which bugs are planted, flags under the server's own names."""

    dialect: str = "vllm"
    era: Version | None = None
    defects: tuple[str, ...] = ()
    flags: Mapping[str, Any] = {}


class LaunchLimits(Part):
    """What each process of the server may have at most: RLIMIT_DATA, RLIMIT_NOFILE, RLIMIT_CORE of setrlimit(2)."""

    memory: Bytes | None = None
    open_files: int | None = Field(default=None, gt=0)
    core: Bytes | None = None


class Launch(Part):
    """A server to start: its command, what is added to its environment, where it will listen, what it may use."""

    command: tuple[str, ...] = Field(min_length=1)
    env: Mapping[str, str] = {}
    url: str = "http://127.0.0.1:8000"
    ready_within: DurationS = 1200.0
    limits: LaunchLimits = LaunchLimits()


class Stopping(Part):
    """The run ends when the server is dead."""


class Waiting(Part):
    """The load waits for the server's return: `at_most` so long, and no more after so many `deaths`."""

    at_most: DurationS | None = None
    deaths: int | None = Field(default=None, gt=0)


class Restarting(Part):
    """A server that loadchaos started is started again, `at_most` so often."""

    at_most: int = Field(default=20, gt=0)


class OnDeath(Part):
    """What to do when the server dies: one of the three."""

    stop: Stopping | None = None
    wait: Waiting | None = None
    restart: Restarting | None = None

    @model_validator(mode="after")
    def _one(self) -> OnDeath:
        if sum(way is not None for way in (self.stop, self.wait, self.restart)) != 1:
            raise ValueError("one of stop, wait or restart was expected")
        return self

    @property
    def policy(self) -> Literal["stop", "wait", "restart"]:
        """Which of them."""
        return "wait" if self.wait is not None else "restart" if self.restart is not None else "stop"


_OnDeathName = Literal["stop", "wait", "restart"]


def _on_death(value: object) -> object:
    """`wait` is `{wait: {}}`."""
    if isinstance(value, str):
        if value not in get_args(_OnDeathName):
            raise ValueError(f"one of {', '.join(get_args(_OnDeathName))} was expected (got {value!r})")
        return {value: {}}
    if isinstance(value, Mapping):
        return {name: {} if options is None else options for name, options in value.items()}
    return value


class Replica(Part):
    """One of several servers behind the target: watched and attacked one by one."""

    name: str
    url: str
    log: str | None = None


class Target(Part):
    """What is tested where the command line names no server, and what to do when it dies.

    `ca` and `insecure` are for https: a PEM file with the certificates to believe, or none is checked. `tokenizer` is a
    folder with tokenizer.json to count words by, for a server that does not tell how it counts.
    """

    dialect: str = "auto"
    on_death: Annotated[OnDeath, BeforeValidator(_on_death, json_schema_input_type=_OnDeathName | OnDeath)] = OnDeath(
        wait=Waiting()
    )
    embedded: Embedded | None = None
    launch: Launch | None = None
    replicas: tuple[Replica, ...] = ()
    toxiproxy: str | None = None
    ca: str | None = None
    insecure: bool = False
    tokenizer: str | None = None


class OutputOptions(Part):
    """`max` is a cap; `exact` makes the server go on to that length, where it has the means."""

    max: IntRange | None = None
    exact: IntRange | None = None

    @model_validator(mode="after")
    def _one(self) -> OutputOptions:
        if (self.max is None) == (self.exact is None):
            raise ValueError("either max or exact was expected, e.g. {max: 128}")
        low = (self.max or self.exact or Range(1, 1)).low
        if low < 1:
            raise ValueError(f"an answer has at least 1 token (got {low})")
        return self


@dataclass(frozen=True)
class Chosen:
    """A behaviour of the shelf with the share of the traffic that behaves so, and its options (a shelf's model)."""

    name: str
    share: float
    options: BaseModel


def _behaviours(value: object) -> object:
    """`slow_read` is `{slow_read: {}}`; options may be left out."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, Mapping):
        return {name: {} if options is None else options for name, options in value.items()}
    return value


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Traffic(Part):
    """One kind of request with its weight (as in Locust). `payload` and `behaviour` are judged by their shelves."""

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", description="a name of letters, digits, _ and - that begins with a letter"
    )
    weight: float = Field(default=1.0, ge=0)
    payload: dict[str, dict[str, Any]] = Field(min_length=1)
    output: OutputOptions = OutputOptions(max=Range(128, 128))
    behaviour: Annotated[dict[str, dict[str, Any]], BeforeValidator(_behaviours)] = {}
    stream: bool = True
    expect: Annotated[tuple[Outcome, ...], BeforeValidator(_one_or_more)] = ("ok",)

    _options: dict[str, BaseModel] = PrivateAttr(default_factory=dict)
    _chosen: list[Chosen] = PrivateAttr(default_factory=list)
    _plain: BaseModel | None = PrivateAttr(default=None)

    @property
    def payload_options(self) -> Mapping[str, BaseModel]:
        """Each payload's options as its shelf's model."""
        return self._options

    @property
    def behaviours(self) -> list[Chosen]:
        """What part of the requests behaves how; the rest is plain."""
        return self._chosen

    @property
    def plain_options(self) -> BaseModel | None:
        """The options of the behaviour `plain`, which the rest gets."""
        return self._plain


class Phase(Part):
    """One stretch of load. Closed: users; open: rate; burst: N at once; trace: as recorded. Exactly one of the four.

    Or `phases`, one after the other, `repeat` times: a profile has them as so many phases (`unrolled`).

    `unit` is what one of the trace's timestamps lasts (Mooncake's are milliseconds), `speed` 2 plays it twice as fast,
    and `block_tokens` is how many tokens one of its `hash_ids` stands for.
    """

    users: int | None = Field(default=None, gt=0)
    concurrency: int | None = Field(default=None, gt=0)
    requests: int | None = Field(default=None, gt=0)
    rounds: int = Field(default=1, gt=0)
    between: Literal["drain", "none"] = "drain"
    for_: DurationS | None = Field(default=None, alias="for")
    rate: RatePerS | None = None
    law: Law = "constant"
    burstiness: float = Field(default=1.0, gt=0)
    to: RatePerS | None = None
    steps: int = Field(default=5, gt=1)
    at: DurationS | None = None
    width: DurationS | None = None
    period: DurationS = 86_400.0
    max_in_flight: int | None = Field(default=None, gt=0)
    burst: int | None = Field(default=None, gt=0)
    repeat: int = Field(default=1, gt=0)
    every: DurationS | None = None
    trace: str | None = None
    unit: DurationS = 0.001
    speed: float = Field(default=1.0, gt=0)
    block_tokens: int = Field(default=512, gt=0)
    phases: tuple[Phase, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Phase:
        if self.phases:
            extra = sorted(self.model_fields_set - {"phases", "repeat"})
            if extra:
                raise ValueError(
                    f"{extra[0].rstrip('_')} belongs to one of the phases that are repeated, not beside them"
                )
            return self
        if self.users is not None and self.concurrency is not None:
            raise ValueError("users and concurrency are two names of one thing: give one")
        given = [n for n in ("users", "concurrency", "rate", "burst", "trace") if getattr(self, n) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(
                f"a phase has one of users, rate, burst or trace (got {got}), or phases and how often they repeat"
            )
        (_CHECKS[self.kind] if self.trace is None else _trace)(self)
        return self

    @property
    def kind(self) -> Literal["closed", "open", "burst"]:
        """closed: a request when a user is free; open: at its due time; burst: many at once."""
        if self.rate is not None or self.trace is not None:
            return "open"
        return "burst" if self.burst is not None else "closed"

    @property
    def slots(self) -> int:
        """How many requests may be in flight at most."""
        if self.kind == "closed":
            return self.users or self.concurrency or 1
        return self.max_in_flight or (self.burst if self.burst is not None else DEFAULT_IN_FLIGHT)


def unrolled(phases: Iterable[Phase]) -> Iterator[Phase]:
    """Each phase as often as it comes."""
    for phase in phases:
        if not phase.phases:
            yield phase
        for _ in range(phase.repeat if phase.phases else 0):
            yield from unrolled(phase.phases)


def _closed(phase: Phase) -> None:
    if (phase.requests is None) == (phase.for_ is None):
        raise ValueError("a phase with users needs either requests (a round) or for (a time)")
    if phase.for_ is not None and phase.rounds != 1:
        raise ValueError("rounds go with requests, not with for")
    _only(phase, {"users", "concurrency", "requests", "rounds", "between", "for_"})


def _open(phase: Phase) -> None:
    if not phase.for_:
        raise ValueError("a phase with rate needs for: how long, e.g. for: 10m")
    if phase.law in ("ramp", "step", "spike", "day") and phase.to is None:
        raise ValueError(f"the law {phase.law} needs to: the rate it goes to, e.g. to: 50/s")
    if phase.law == "day" and not phase.period:
        raise ValueError("period: how long a day of the law day is, e.g. 24h")
    if phase.law == "spike":
        if phase.at is None or not phase.width:
            raise ValueError("the law spike needs at (when) and width (how long)")
        if phase.at + phase.width > phase.for_:
            raise ValueError("the spike (at + width) ends after the phase (for)")
    _only(phase, {"rate", "law", "for_", "max_in_flight", *_SHAPED_BY})
    for name in sorted(phase.model_fields_set & set(_SHAPED_BY)):
        if phase.law not in _SHAPED_BY[name]:
            raise ValueError(
                f"{name} says nothing to the law {phase.law}: it belongs to {' and '.join(_SHAPED_BY[name])}"
            )


def _burst(phase: Phase) -> None:
    if phase.repeat > 1 and not phase.every:
        raise ValueError("a burst that repeats needs every: how far apart, e.g. every: 20s")
    _only(phase, {"burst", "repeat", "every", "between", "max_in_flight"})


def _trace(phase: Phase) -> None:
    trace.read(phase.trace or "")
    if not phase.unit:
        raise ValueError("unit: what one of the trace's timestamps lasts, e.g. 1ms or 1s")
    _only(phase, {"trace", "unit", "speed", "block_tokens", "requests", "for_", "max_in_flight"})


def _only(phase: Phase, allowed: set[str]) -> None:
    extra = sorted(phase.model_fields_set - allowed)
    if extra:
        raise ValueError(f"{extra[0].rstrip('_')} has no meaning in a phase with {phase.kind} load")


_CHECKS = {"closed": _closed, "open": _open, "burst": _burst}


class Limits(Part):
    """How long a client waits: for the first byte, between two bytes, in all."""

    first_byte: DurationS = 120.0
    between_bytes: DurationS = 30.0
    total: DurationS = 600.0


class Exposure(Part):
    """How often the run has to meet the mechanism it is about, or its pass proves nothing."""

    count: Literal[
        "requests", "image_requests", "image_requests_while_drafting", "near_limit_requests", "attacks"
    ]  # fmt: skip
    at_least: int = Field(gt=0)


class Accepted(Part):
    """A known failure that does not fail the run: why, until when, at most how often."""

    id: str
    because: str = Field(min_length=1)
    until: dt.date
    at_most: int | None = Field(default=None, gt=0)
