"""Times at which an attack is due, in seconds from the start of the load."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from loadchaos.core.typed_json import key

_MAX_DEFAULT_HOLD_S = 5.0


@dataclass(frozen=True)
class Timetable:
    """Time and place of an attack, from its entry in the profile: `from_json` reads one, where None means the default.

    Args:
        every_s: interval between acts.
        after_s: time of the first act; by default one interval. Without `every_s` and `at_s`, the only act.
        at_s: time of a single act.
        during_s: window outside of which no act begins.
        trigger: an act of another attack to follow, instead of a time: ("after", "wake_up"), ("during", "sleep").
        jitter: share of the interval by which each act is moved at random, either way.
        hold_s: time until an act that holds is taken back.
        times: maximum number of acts.
        on: each, one, random, or the name of a replica.
        params: parameters of the attack.
        when: figures of the server that an act waits for once it is due: {"requests_running": ">= 8"}.
    """

    every_s: float | None = None
    after_s: float | None = None
    at_s: float | None = None
    during_s: tuple[float, float] | None = None
    trigger: tuple[str, str] | None = None
    jitter: float = 0.1
    hold_s: float | None = field(default=None, metadata=key("for_s"))
    times: int | None = None
    on: str = "each"
    params: Mapping[str, object] = field(default_factory=dict)
    when: Mapping[str, str] = field(default_factory=dict)

    def moments(self, rng: random.Random) -> Iterator[float]:
        begin, end = self.during_s or (0.0, math.inf)
        n = 0
        for moment in self._unlimited(rng):
            if (self.times is not None and n >= self.times) or moment > end:
                return
            if moment >= begin:
                n += 1
                yield moment

    def _unlimited(self, rng: random.Random) -> Iterator[float]:
        if self.at_s is not None:
            yield self.at_s
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
        """Time that an act holds, in seconds: by default half the interval, at most 5 s."""
        if self.hold_s is not None:
            return self.hold_s
        return min(self.every_s / 2, _MAX_DEFAULT_HOLD_S) if self.every_s else _MAX_DEFAULT_HOLD_S
