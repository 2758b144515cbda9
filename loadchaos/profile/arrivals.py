"""Arrival laws: generators of due times of a phase. Due times are in seconds from the start of the phase. They never
decrease. A closed phase has none: its users send a request when they are free.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator

_PARTS_OF_A_DAY = 96

Segment = tuple[float, float]
"""(length in seconds, requests per second)"""


def constant(rate: float, for_s: float) -> Iterator[float]:
    """Evenly spaced arrivals, the first at 0: ceil(rate x for_s) of them."""
    return piecewise([(for_s, rate)])


def poisson(rate: float, for_s: float, seed: int) -> Iterator[float]:
    """Poisson arrivals: exponential gaps, as from many independent users."""
    return gamma(rate, for_s, 1.0, seed)


def gamma(rate: float, for_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """Arrivals with gamma-distributed gaps of shape `burstiness`. 1 is Poisson, less is burstier, more is steadier. The
    mean rate stays the same: the scale is 1 / (rate x burstiness), as in `vllm bench serve --burstiness`.
    """
    rng = random.Random(seed)
    scale = 1.0 / (rate * burstiness)
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
    length, mean, swing = period / _PARTS_OF_A_DAY, (rate + to) / 2, (to - rate) / 2
    # A day can have almost no requests at its minimum: use the integral over a part, not the rate in its middle.
    whole = math.ceil(for_s / length)
    parts = ((n * length, min((n + 1) * length, for_s)) for n in range(whole))
    frequency = 2 * math.pi / period

    def area(begin: float, end: float) -> float:
        return mean * (end - begin) + swing / frequency * (
            math.sin(frequency * (end - peak)) - math.sin(frequency * (begin - peak))
        )

    return piecewise((end - begin, max(area(begin, end) / (end - begin), 0.0)) for begin, end in parts if end > begin)


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
