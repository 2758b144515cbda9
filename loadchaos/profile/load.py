"""`load` of a profile: users, a rate, bursts, a trace or a replay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from loadchaos.core.unit_fields import DurationS, RatePerS
from loadchaos.profile import request_trace, trace
from loadchaos.profile.base import ProfilePart

Law = Literal["constant", "poisson", "gamma", "ramp", "step", "spike", "day"]
_SHAPED_BY: Mapping[str, tuple[Law, ...]] = {
    "burstiness": ("gamma",),
    "to": ("ramp", "step", "spike", "day"),
    "steps": ("step",),
    "at": ("spike", "day"),
    "width": ("spike",),
    "period": ("day",),
}
"""Laws that use a key of an open phase.

With any other law the key is a mistake.
"""
STEADY_LAWS: tuple[Law, ...] = ("constant", "poisson", "gamma")
"""Laws without a shape over time: a number of requests is enough to end them."""

DEFAULT_IN_FLIGHT = 256
"""Maximum requests in flight of an open phase that sets none."""

MOST_REPLAYED_IN_FLIGHT = 4096
"""Maximum requests in flight of a replay that sets none."""

_MOST_IN_FLIGHT = 100_000
"""Requests in flight together: more have no ports for their connections."""
_MOST_REQUESTS = 1_000_000_000
"""Requests of one round of a phase."""
_MOST_REPEATS = 100_000
"""Rounds of a phase, repeats of its bursts, steps of its rate, and periods of its day."""


class Phase(ProfilePart):
    """One phase: one of `users`, `rate`, `burst`, `trace` and `replay`.

    `users` is a closed loop, `rate` an open one that ends after a time (`for`) or a number of `requests`, whichever is
    first, `burst` sends N requests at once, `trace` replays recorded arrivals,
    `replay` sends the recorded requests of a trace.jsonl `rounds` times, each after the events that caused it. A phase may
    instead have `phases`, which run one after the other, `repeat` times (`unrolled`).

    `unit` is the length of one unit of the trace's timestamps in seconds (milliseconds for Mooncake). `speed` 2 replays
    twice as fast. `block_tokens` is the number of tokens of one of its `hash_ids`. Latency, throughput and goodput leave the
    requests of a `warm_up` out; its failures count. `traffic` names the traffic that a phase sends; without it, all.
    """

    users: int | None = Field(default=None, gt=0, le=_MOST_IN_FLIGHT)
    concurrency: int | None = Field(default=None, gt=0, le=_MOST_IN_FLIGHT)
    requests: int | None = Field(default=None, gt=0, le=_MOST_REQUESTS)
    rounds: int = Field(default=1, gt=0, le=_MOST_REPEATS)
    between: Literal["drain", "none"] = "drain"
    for_: DurationS | None = Field(default=None, alias="for")
    rate: RatePerS | None = None
    law: Law = "constant"
    burstiness: float = Field(default=1.0, ge=0.01)
    to: RatePerS | None = None
    steps: int = Field(default=5, gt=1, le=_MOST_REPEATS)
    at: DurationS | None = None
    width: DurationS | None = None
    period: DurationS = 86_400.0
    max_in_flight: int | None = Field(default=None, gt=0, le=_MOST_IN_FLIGHT)
    burst: int | None = Field(default=None, gt=0, le=_MOST_IN_FLIGHT)
    repeat: int = Field(default=1, gt=0, le=_MOST_REPEATS)
    every: DurationS | None = None
    trace: str | None = None
    replay: str | None = None
    unit: DurationS = 0.001
    speed: float = Field(default=1.0, gt=0)
    block_tokens: int = Field(default=512, gt=0)
    warm_up: bool = False
    traffic: tuple[str, ...] = Field(default=(), json_schema_extra={"minItems": 1})
    phases: tuple[Phase, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Phase:
        if self.phases:
            extra = sorted(self.model_fields_set - {"phases", "repeat"})
            if extra:
                raise ValueError(
                    f"{extra[0].rstrip('_')} belongs inside one of the repeated phases, not next to phases"
                )
            return self
        if self.users is not None and self.concurrency is not None:
            raise ValueError("users and concurrency have the same meaning: give one of them")
        given = [name for name in _CHECKS if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(
                f"a phase needs one of users, rate, burst, trace or replay (got {got}), or phases and repeat"
            )
        _CHECKS[given[0]](self)
        return self

    @property
    def kind(self) -> Literal["closed", "open", "burst"]:
        """Kind of load: a closed loop of users, an open loop, or bursts."""
        if self.rate is not None or self.trace is not None or self.replay is not None:
            return "open"
        return "burst" if self.burst is not None else "closed"

    @property
    def slots(self) -> int:
        if self.kind == "closed":
            return self.users or self.concurrency or 1
        if self.replay is not None and not self.max_in_flight:
            return min(len(request_trace.read(Path(self.replay)).sends), MOST_REPLAYED_IN_FLIGHT)
        return self.max_in_flight or (self.burst if self.burst is not None else DEFAULT_IN_FLIGHT)

    @property
    def timed_s(self) -> float:
        """Length in seconds as far as the phase sets it; 0: the server does."""
        if self.rate is None or self.requests is None or self.law not in STEADY_LAWS:
            return self.for_ or 0.0
        return min(self.requests / self.rate, self.for_ or math.inf)

    @property
    def is_steady(self) -> bool:
        """True if users or a rate stay the same, and requests come after the first answers."""
        if self.kind == "closed":
            return self.rounds == 1 and (self.requests is None or self.requests > self.slots)
        return self.rate is not None and self.law in STEADY_LAWS

    @property
    def repeats_prompts(self) -> bool:
        """True if it sends recorded prompts, of which some may be equal."""
        return self.replay is not None or (self.trace is not None and any(a.blocks for a in trace.read(self.trace)))

    def describe_slots(self) -> str:
        if self.kind == "closed":
            return f"the profile's number of users ({self.slots})"
        if self.replay is not None and not self.max_in_flight:
            return f"the requests of the trace ({self.slots})"
        if self.max_in_flight:
            return f"the profile's max_in_flight of {self.slots}"
        return f"the default max_in_flight of {self.slots}"


def unrolled(phases: Iterable[Phase]) -> Iterator[Phase]:
    for phase in phases:
        if not phase.phases:
            yield phase
        for _ in range(phase.repeat if phase.phases else 0):
            yield from unrolled(phase.phases)


def _closed(phase: Phase) -> None:
    if (phase.requests is None) == (phase.for_ is None):
        raise ValueError("a phase with users needs either requests (per round) or for (a duration)")
    if phase.for_ is not None and phase.rounds != 1:
        raise ValueError("rounds go with requests, not with for")
    _only(phase, {"users", "concurrency", "requests", "rounds", "between", "for_"})


def _open(phase: Phase) -> None:
    if not phase.for_ and phase.requests is None:
        raise ValueError(
            "a phase with rate needs a duration, e.g. for: 10m, or a number of requests, e.g. requests: 500"
        )
    if not phase.for_ and phase.law not in STEADY_LAWS:
        raise ValueError(f"the law {phase.law} needs a duration, e.g. for: 10m; requests may end it earlier")
    if phase.law in ("ramp", "step", "spike", "day") and phase.to is None:
        raise ValueError(f"the law {phase.law} needs a second rate, e.g. to: 50/s")
    if phase.law == "day" and not phase.period:
        raise ValueError("the law day needs a period above 0, e.g. period: 24h")
    if phase.law == "day" and (phase.for_ or 0.0) / phase.period > _MOST_REPEATS:
        raise ValueError(f"the day repeats more than {_MOST_REPEATS:,} times within for: give a longer period")
    if phase.law == "spike":
        if phase.at is None or not phase.width:
            raise ValueError("the law spike needs at (its start) and width (its length)")
        if phase.at + phase.width > (phase.for_ or 0.0):
            raise ValueError("the spike (at + width) ends after the phase (for)")
    _only(phase, {"rate", "law", "for_", "requests", "max_in_flight", *_SHAPED_BY})
    for name in sorted(phase.model_fields_set & set(_SHAPED_BY)):
        if phase.law not in _SHAPED_BY[name]:
            raise ValueError(
                f"{name} has no effect with the law {phase.law}: it belongs to {' and '.join(_SHAPED_BY[name])}"
            )


def _burst(phase: Phase) -> None:
    if phase.repeat > 1 and not phase.every:
        raise ValueError("a burst that repeats needs an interval, e.g. every: 20s")
    _only(phase, {"burst", "repeat", "every", "between", "max_in_flight"})


def _trace(phase: Phase) -> None:
    arrivals = trace.read(phase.trace or "")
    shape = trace.format_of(phase.trace or "")
    if shape.own_unit and "unit" in phase.model_fields_set:
        raise ValueError(f"unit has no effect with {shape.about}, whose times have a unit: remove it")
    for arrival in arrivals:
        most = math.ceil(arrival.input_tokens / phase.block_tokens)
        if len(arrival.blocks) > most + 1:
            raise ValueError(
                f"block_tokens: {phase.block_tokens} does not fit the trace: "
                f"a prompt of {arrival.input_tokens:,} tokens has "
                f"{len(arrival.blocks):,} hash_ids, and {most:,} were expected"
            )
    if not phase.unit:
        raise ValueError("a trace needs the unit of its timestamps, e.g. unit: 1ms or unit: 1s")
    _only(phase, {"trace", "unit", "speed", "block_tokens", "requests", "for_", "max_in_flight"})


def _replay(phase: Phase) -> None:
    request_trace.read(Path(phase.replay or ""))
    if phase.traffic:
        raise ValueError("a replay sends all requests of its trace: remove traffic")
    _only(phase, {"replay", "speed", "rounds", "max_in_flight"})


def _only(phase: Phase, allowed: set[str]) -> None:
    extra = sorted(phase.model_fields_set - allowed - {"warm_up", "traffic"})
    if extra:
        raise ValueError(f"{extra[0].rstrip('_')} has no effect in a phase with {phase.kind} load: remove it")


_CHECKS = {
    "users": _closed, "concurrency": _closed, "rate": _open, "burst": _burst, "trace": _trace, "replay": _replay,
}  # fmt: skip
"""Keys of which a phase has one, each with the check of such a phase."""
