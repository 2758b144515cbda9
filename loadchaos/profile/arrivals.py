"""Arrivals of a profile's `load`: due times and request counts of its phases, and the laws of a rate.

Due times are in seconds from the start of the phase and never decrease. A closed phase has none: its users send a request
when they are free.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from loadchaos.core.rng import hash64
from loadchaos.profile import request_trace, trace
from loadchaos.profile.load import Law, Phase
from loadchaos.profile.trace_formats import Arrival

_PARTS_OF_A_DAY = 96
_MOST_COUNTED = 1_000_000
"""Up to this many arrivals are counted one by one. Counting more takes minutes, and their mean number is close."""

Segment = tuple[float, float]
"""(length in seconds, requests per second)"""


def planned_requests(phases: Sequence[Phase], seed: int = 0) -> int | None:
    """Number of requests of all phases. None if a phase of users has a duration instead of a number of requests."""
    counts = [phase_requests(phase, seed, number) for number, phase in enumerate(phases)]
    return None if None in counts else sum(n for n in counts if n is not None)


def phase_requests(phase: Phase, seed: int, number: int) -> int | None:
    """Number of requests of phase `number`. None for a phase of users with a duration."""
    if phase.kind == "closed":
        return None if phase.requests is None else phase.requests * phase.rounds
    if phase.burst is not None:
        return phase.burst * phase.repeat
    if phase.rate is not None and (mean := min(_mean_arrivals(phase), phase.requests or math.inf)) > _MOST_COUNTED:
        return round(mean)
    return sum(1 for _ in pace(phase, pacing_seed(seed, number)))


def pacing_seed(seed: int, number: int) -> int:
    return hash64(hash64(seed, number), 1)


def pace(phase: Phase, seed: int) -> Iterator[tuple[int, float | None]]:
    """Yield (round, due time in seconds) of every step of a phase. A closed phase has no due times."""
    if phase.burst is not None:
        yield from burst(phase.burst, phase.repeat, phase.every or 0.0)
    elif phase.rate is not None:
        for due_s in islice(_due_times(phase, seed), phase.requests):
            yield 0, due_s
    elif phase.replay is not None:
        for round_ in range(phase.rounds):
            for send in request_trace.read(Path(phase.replay)).sends:
                yield round_, send.at_s / phase.speed
    elif phase.trace is not None:
        for due_s, _ in replayed(phase):
            yield 0, due_s
    elif phase.requests is not None:
        for round_ in range(phase.rounds):
            for _ in range(phase.requests):
                yield round_, None
    else:
        while True:
            yield 0, None


def replayed(phase: Phase) -> Iterator[tuple[float, Arrival]]:
    """Yield (due time in seconds, arrival) of the replayed part of a trace."""
    for arrival in trace.read(phase.trace or "")[: phase.requests]:
        due_s = arrival.at * phase.unit / phase.speed
        if phase.for_ is not None and due_s >= phase.for_:
            return
        yield due_s, arrival


def _due_times(phase: Phase, seed: int) -> Iterator[float]:
    rate, for_s, to = phase.rate or 0.0, phase.for_ or math.inf, phase.to or phase.rate or 0.0
    laws: Mapping[Law, Callable[[], Iterator[float]]] = {
        "constant": lambda: constant(rate, for_s),
        "poisson": lambda: gamma(rate, for_s, 1.0, seed, phase.requests),
        "gamma": lambda: gamma(rate, for_s, phase.burstiness, seed, phase.requests),
        "ramp": lambda: ramp(rate, to, for_s),
        "step": lambda: step(rate, to, phase.steps, for_s),
        "spike": lambda: spike(rate, to, phase.at or 0.0, phase.width or 0.0, for_s),
        "day": lambda: day(rate, to, phase.at or 0.0, phase.period, for_s),
    }
    return laws[phase.law]()


def _mean_arrivals(phase: Phase) -> float:
    rate, for_s, to = phase.rate or 0.0, phase.for_ or math.inf, phase.to or phase.rate or 0.0
    if phase.law in ("ramp", "step"):
        return (rate + to) / 2 * for_s
    if phase.law == "spike":
        return rate * for_s + (to - rate) * (phase.width or 0.0)
    if phase.law == "day":
        return _day_area(rate, to, phase.at or 0.0, phase.period, 0.0, for_s)
    return rate * for_s


def constant(rate: float, for_s: float) -> Iterator[float]:
    """Evenly spaced arrivals, the first at 0: ceil(rate x for_s) of them."""
    return piecewise([(for_s, rate)])


def gamma(rate: float, for_s: float, burstiness: float, seed: int, count: int | None = None) -> Iterator[float]:
    """Arrivals with gamma-distributed gaps of shape `burstiness`. 1 is Poisson, less is burstier, more is steadier. The
    mean rate stays the same: the scale is 1 / (rate x burstiness), as in `vllm bench serve --burstiness`. Where `count`
    arrivals alone end the phase, the last is due at count / rate, as there: few gaps would offer another rate than asked.
    """
    rng = random.Random(seed)
    scale = 1.0 / (rate * burstiness)
    if count is not None and count <= _MOST_COUNTED and math.isinf(for_s):
        total_s = sum(rng.gammavariate(burstiness, scale) for _ in range(count))
        scale *= count / rate / total_s if total_s else 1.0  # gaps of a tiny burstiness are rounded to 0
        rng = random.Random(seed)
    at = rng.gammavariate(burstiness, scale)
    while at < for_s:
        yield at
        at += rng.gammavariate(burstiness, scale)


def ramp(rate: float, to: float, for_s: float) -> Iterator[float]:
    """Arrivals at a rate that changes linearly from `rate` to `to`. Arrival k is at the time where the integral of the
    rate reaches k, which is a quadratic.
    """
    if math.isclose(rate, to):
        yield from constant(rate, for_s)
        return
    slope = (to - rate) / for_s
    planned = (rate + to) / 2 * for_s
    k = 0
    while k < planned - 1e-9:
        root = math.sqrt(max(0.0, rate * rate + 2 * slope * k))
        # k / ((rate + root) / 2) solves the quadratic without the cancellation of (-rate + root) / slope.
        yield 0.0 if k == 0 else min(2 * k / (rate + root), for_s)
        k += 1


def step(rate: float, to: float, steps: int, for_s: float) -> Iterator[float]:
    """Arrivals in `steps` levels of equal length from `rate` to `to`."""
    rise = (to - rate) / max(1, steps - 1)
    return piecewise([(for_s / steps, rate + rise * i) for i in range(steps)])


def spike(rate: float, to: float, at: float, width: float, for_s: float) -> Iterator[float]:
    """Arrivals at `rate`, and at `to` for `width` seconds from `at` on."""
    end = min(at + width, for_s)
    return piecewise([(at, rate), (end - at, to), (for_s - end, rate)])


def day(rate: float, to: float, peak: float, period: float, for_s: float) -> Iterator[float]:
    """Arrivals at a rate that follows a repeated daily curve. The curve is a cosine with its maximum `to` at `peak`
    seconds and its minimum `rate` half a period later. Arrivals are evenly spaced within each of the 96 parts of a
    period.
    """
    length = period / _PARTS_OF_A_DAY
    # A day can have almost no requests at its minimum: use the integral over a part, not the rate in its middle.
    whole = math.ceil(for_s / length)
    parts = ((n * length, min((n + 1) * length, for_s)) for n in range(whole))
    area = partial(_day_area, rate, to, peak, period)
    return piecewise((end - begin, max(area(begin, end) / (end - begin), 0.0)) for begin, end in parts if end > begin)


def _day_area(rate: float, to: float, peak: float, period: float, begin: float, end: float) -> float:
    frequency = 2 * math.pi / period
    waves = math.sin(frequency * (end - peak)) - math.sin(frequency * (begin - peak))
    return (rate + to) / 2 * (end - begin) + (to - rate) / 2 / frequency * waves


def piecewise(segments: Iterable[Segment]) -> Iterator[float]:
    """Arrivals evenly spaced within each segment. A gap that the end of a segment cuts continues in the next segment."""
    begin, owed = 0.0, 0.0  # `owed`: remaining part of the gap before the next arrival, in arrivals
    for length, rate in segments:
        if length <= 0:
            continue
        if rate <= 0:
            begin += length
            continue
        planned = rate * length
        k = 0
        while owed + k < planned - 1e-9:
            yield begin + (owed + k) / rate
            k += 1
        owed += k - planned
        begin += length


def burst(size: int, repeat: int, every_s: float) -> Iterator[tuple[int, float]]:
    """Yield (round, due time) of bursts of `size`, `every_s` seconds apart."""
    for number in range(repeat):
        for _ in range(size):
            yield number, number * every_s
