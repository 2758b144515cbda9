"""`load` of a profile: phases of users, of a rate and its law, of bursts or of a trace, and what each may say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from pydantic import Field, model_validator

from loadchaos.core.units import DurationS, RatePerS
from loadchaos.profile import trace
from loadchaos.profile.base import Part

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
