"""Arrival laws: when each request of a phase is due, in seconds from the phase's begin, as generators of such times.

Due times never go back. A closed phase has none: a request is due when a user is free.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator

_PARTS_OF_A_DAY = 96

Segment = tuple[float, float]
"""Seconds long, requests per second."""


def constant(rate: float, for_s: float) -> Iterator[float]:
    """Evenly spaced, the first at once: ceil(rate x for_s) of them."""
    return piecewise([(for_s, rate)])


def poisson(rate: float, for_s: float, seed: int) -> Iterator[float]:
    """Independent arrivals: exponential gaps, as many users who know nothing of each other make."""
    return gamma(rate, for_s, 1.0, seed)


def gamma(rate: float, for_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """Gaps of a gamma law with shape `burstiness` (1 is poisson, less comes in clumps, more is steadier).

    The mean rate stays: scale is 1 / (rate x burstiness), as `vllm bench serve --burstiness` has it.
    """
    rng = random.Random(seed)
    scale = 1.0 / (rate * burstiness)
    at = rng.gammavariate(burstiness, scale)
    while at < for_s:
        yield at
        at += rng.gammavariate(burstiness, scale)


def ramp(rate: float, to: float, for_s: float) -> Iterator[float]:
    """The rate goes evenly from `rate` to `to`; arrival k is where the area under it reaches k (a quadratic)."""
    if math.isclose(rate, to):
        yield from constant(rate, for_s)
        return
    slope = (to - rate) / for_s
    planned = (rate + to) / 2 * for_s
    k = 0
    while k < planned - 1e-9:
        root = math.sqrt(max(0.0, rate * rate + 2 * slope * k))
        # k / ((rate + root) / 2) is the quadratic's solution without the loss of (-rate + root) / slope.
        yield 0.0 if k == 0 else min(2 * k / (rate + root), for_s)
        k += 1


def step(rate: float, to: float, steps: int, for_s: float) -> Iterator[float]:
    """A staircase of `steps` equally long levels from `rate` to `to`."""
    rise = (to - rate) / max(1, steps - 1)
    return piecewise([(for_s / steps, rate + rise * i) for i in range(steps)])


def spike(rate: float, to: float, at: float, width: float, for_s: float) -> Iterator[float]:
    """`rate`, but `to` from `at` for `width` seconds."""
    end = min(at + width, for_s)
    return piecewise([(at, rate), (end - at, to), (for_s - end, rate)])


def day(rate: float, to: float, peak: float, period: float, for_s: float) -> Iterator[float]:
    """A day's curve, again and again: a cosine from `to`, `peak` seconds after the begin, down to `rate` half a day later.

    Arrivals are evenly spaced within each of the 96 parts of a day.
    """
    length, mean, swing = period / _PARTS_OF_A_DAY, (rate + to) / 2, (to - rate) / 2
    # A day may have next to no requests at night: the area under a part decides, not the rate in its middle.
    whole = math.ceil(for_s / length)
    parts = ((n * length, min((n + 1) * length, for_s)) for n in range(whole))
    turn = 2 * math.pi / period

    def area(begin: float, end: float) -> float:
        return mean * (end - begin) + swing / turn * (math.sin(turn * (end - peak)) - math.sin(turn * (begin - peak)))

    return piecewise((end - begin, max(area(begin, end) / (end - begin), 0.0)) for begin, end in parts if end > begin)


def piecewise(segments: Iterable[Segment]) -> Iterator[float]:
    """Evenly spaced within each segment; what a segment's end cuts off counts on in the next."""
    begin, owed = 0.0, 0.0  # `owed`: how much of the next arrival's wait is still to come, in arrivals
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
    """(round, due): `size` at once, `repeat` times, one burst every `every_s` seconds."""
    for number in range(repeat):
        for _ in range(size):
            yield number, number * every_s
