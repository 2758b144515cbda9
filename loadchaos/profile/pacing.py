"""Due times and request counts of the phases of a profile's `load`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from loadchaos.core.rng import hash64
from loadchaos.profile import arrivals, request_trace, trace
from loadchaos.profile.load import Law, Phase
from loadchaos.profile.trace_formats import Arrival


def planned_requests(phases: Sequence[Phase], seed: int = 0) -> int | None:
    """Number of requests of all phases. None if a phase of users has a duration instead of a number of requests."""
    counts = [phase_requests(phase, seed, number) for number, phase in enumerate(phases)]
    return None if None in counts else sum(n for n in counts if n is not None)


def phase_requests(phase: Phase, seed: int, number: int) -> int | None:
    """Number of requests of phase `number`. None for a phase of users with a duration."""
    if phase.kind == "closed":
        return None if phase.requests is None else phase.requests * phase.rounds
    return sum(1 for _ in pace(phase, pacing_seed(seed, number)))


def pacing_seed(seed: int, number: int) -> int:
    return hash64(hash64(seed, number), 1)


def pace(phase: Phase, seed: int) -> Iterator[tuple[int, float | None]]:
    """Yield (round, due time in seconds) of every step of a phase. A closed phase has no due times."""
    if phase.burst is not None:
        yield from arrivals.burst(phase.burst, phase.repeat, phase.every or 0.0)
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
        "constant": lambda: arrivals.constant(rate, for_s),
        "poisson": lambda: arrivals.poisson(rate, for_s, seed),
        "gamma": lambda: arrivals.gamma(rate, for_s, phase.burstiness, seed),
        "ramp": lambda: arrivals.ramp(rate, to, for_s),
        "step": lambda: arrivals.step(rate, to, phase.steps, for_s),
        "spike": lambda: arrivals.spike(rate, to, phase.at or 0.0, phase.width or 0.0, for_s),
        "day": lambda: arrivals.day(rate, to, phase.at or 0.0, phase.period, for_s),
    }
    return laws[phase.law]()
