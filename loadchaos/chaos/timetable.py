"""When an attack is due: every so often with seeded jitter, at given moments, or once; all seconds count from the load."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_JITTER = 0.1
_LONGEST_DEFAULT_HOLD_S = 5.0


@dataclass(frozen=True)
class Timetable:
    """What a profile's attack entry says about time and place.

    `every_s` apart (from `after_s` on, default one interval), each moved by up to +-`jitter` of the interval; or at
    each of `at_s`; without both, once at `after_s`. `during_s` is a window outside of which nothing begins. In place of
    all these, `trigger` is what another act does: ("after", "wake_up"), ("during", "sleep").
    `hold_s` is how long what holds is left before it is taken back. `on` is each, one, random, or a replica's name;
    `times` at most so often. Once due, an act waits for `when`, the server's figures being such:
    {"requests_running": ">= 8"}.
    """

    every_s: float | None = None
    after_s: float | None = None
    at_s: tuple[float, ...] = ()
    during_s: tuple[float, float] | None = None
    trigger: tuple[str, str] | None = None
    jitter: float = DEFAULT_JITTER
    hold_s: float | None = None
    times: int | None = None
    on: str = "each"
    params: Mapping[str, Any] = field(default_factory=dict)
    when: Mapping[str, str] = field(default_factory=dict)

    def moments(self, rng: random.Random) -> Iterator[float]:
        """Seconds after the begin of the load, rising."""
        begin, end = self.during_s or (0.0, math.inf)
        n = 0
        for moment in self._all(rng):
            if (self.times is not None and n >= self.times) or moment > end:
                return
            if moment >= begin:
                n += 1
                yield moment

    def _all(self, rng: random.Random) -> Iterator[float]:
        if self.at_s:
            yield from sorted(self.at_s)
        elif self.every_s is None:
            yield self.after_s or (self.during_s[0] if self.during_s else 0.0)
        else:
            begin = self.after_s if self.during_s is None else self.during_s[0]
            moment = self.every_s if begin is None else begin
            while True:
                yield max(moment + rng.uniform(-1, 1) * self.jitter * self.every_s, 0.0)
                moment += self.every_s

    @property
    def hold(self) -> float:
        """How long to hold, by default half the interval and at most 5 s."""
        if self.hold_s is not None:
            return self.hold_s
        return min(self.every_s / 2, _LONGEST_DEFAULT_HOLD_S) if self.every_s else _LONGEST_DEFAULT_HOLD_S


def timetable(spec: Any) -> Timetable:
    """Out of a mapping or an object with these names; None and what is missing mean the default."""

    def get(name: str) -> Any:
        return spec.get(name) if isinstance(spec, Mapping) else getattr(spec, name, None)

    at = get("at_s")
    moments = () if at is None else tuple(at) if isinstance(at, list | tuple) else (float(at),)
    jitter = get("jitter")
    hold = get("hold_s")
    return Timetable(
        every_s=get("every_s"),
        after_s=get("after_s"),
        at_s=moments,
        during_s=get("during_s"),
        trigger=get("trigger"),
        jitter=DEFAULT_JITTER if jitter is None else float(jitter),
        hold_s=get("for_s") if hold is None else hold,
        times=get("times"),
        on=get("on") or "each",
        params=dict(get("params") or {}),
        when=dict(get("when") or {}),
    )
