"""Profile and seed -> steps: when each request is due, which traffic it is, how its client behaves, with which seed.

Step i of a run depends on the seed and i alone, so N workers each make their own: step i belongs to worker i mod N.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol, cast, runtime_checkable

from loadchaos.core.model import Output, Step
from loadchaos.core.rng import Rng, begun, mix, mixed
from loadchaos.profile import arrivals, trace
from loadchaos.profile.load import Phase
from loadchaos.profile.profile import Profile
from loadchaos.profile.traffic import OutputOptions, Traffic

PHASE_STRIDE = 1_000_000_000
"""Indices of phase p begin at p times this: a phase that lasts a time has no number of steps known before."""


@runtime_checkable
class InTurns(Protocol):
    """Payload options that are sent one variant after the other (the rungs of a ladder), not drawn."""

    def turns(self) -> Sequence[Any]:
        """Every variant, in order: options of the same kind."""


def steps(profile: Profile, seed: int, worker: int = 0, workers: int = 1) -> Iterator[Step]:
    """This worker's steps of all phases, in order. A phase of users with `for` never ends by itself: see `of_phase`."""
    for number in range(len(profile.load)):
        yield from of_phase(profile, seed, number, worker, workers)


def of_phase(profile: Profile, seed: int, number: int, worker: int = 0, workers: int = 1) -> Iterator[Step]:
    """This worker's steps of one phase. Endless for a phase of users with `for`: who drives it ends it by the clock."""
    phase = profile.load[number]
    makers = [_Maker(traffic, seed, number) for traffic in profile.traffic]
    edges = list(accumulate(t.weight for t in profile.traffic))
    phase_seed = mix(seed, number)
    phase_steps = begun(phase_seed, 2)
    base = number * PHASE_STRIDE
    last = len(edges) - 1
    recorded = trace.read(phase.trace) if phase.trace is not None else None
    for i, (round_, due_s) in enumerate(_pacing(phase, mix(phase_seed, 1))):
        step_seed = mixed(phase_steps, i)
        maker = makers[min(last, bisect_right(edges, (step_seed >> 11) * 2.0**-53 * edges[-1]))]
        ordinal = maker.count
        maker.count += 1
        if (base + i) % workers == worker:
            step = maker.step(base + i, round_, due_s, step_seed, ordinal)
            yield step if recorded is None else trace.applied(step, recorded[i], phase.block_tokens)


def total(profile: Profile, seed: int = 0) -> int | None:
    """How many requests are planned; None where a phase of users lasts a time."""
    counts = [count(profile, seed, number) for number in range(len(profile.load))]
    return None if None in counts else sum(c for c in counts if c is not None)


def count(profile: Profile, seed: int, number: int) -> int | None:
    """How many requests are planned for one phase; None for users that last a time."""
    return _count(profile.load[number], mix(mix(seed, number), 1))


Sent = Sequence[Sequence[int]]
"""What earlier runs of a plan have had: for each, by worker, the index of the last step. Workers are not equally fast."""


def is_left(index: int, sent: Sent) -> bool:
    """Whether a step is still to come when a plan is gone on with."""
    return all(index > last[index % len(last)] for last in sent)


def _count(phase: Phase, seed: int) -> int | None:
    if phase.kind == "closed":
        return None if phase.requests is None else phase.requests * phase.rounds
    return sum(1 for _ in _pacing(phase, seed))


def _pacing(phase: Phase, seed: int) -> Iterator[tuple[int, float | None]]:
    """(round, due) of every step of a phase."""
    if phase.burst is not None:
        yield from arrivals.burst(phase.burst, phase.repeat, phase.every or 0.0)
    elif phase.rate is not None:
        for due_s in due_times(phase, seed):
            yield 0, due_s
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


def replayed(phase: Phase) -> Iterator[tuple[float, trace.Arrival]]:
    """(due, arrival) of what a phase plays of its trace."""
    for arrival in trace.read(phase.trace or "")[: phase.requests]:
        due_s = arrival.at * phase.unit / phase.speed
        if phase.for_ is not None and due_s >= phase.for_:
            return
        yield due_s, arrival


def due_times(phase: Phase, seed: int) -> Iterator[float]:
    """Due times of an open phase by its law."""
    rate, for_s, to = phase.rate or 0.0, phase.for_ or 0.0, phase.to or phase.rate or 0.0
    if phase.law == "poisson":
        return arrivals.poisson(rate, for_s, seed)
    if phase.law == "gamma":
        return arrivals.gamma(rate, for_s, phase.burstiness, seed)
    if phase.law == "ramp":
        return arrivals.ramp(rate, to, for_s)
    if phase.law == "step":
        return arrivals.step(rate, to, phase.steps, for_s)
    if phase.law == "spike":
        return arrivals.spike(rate, to, phase.at or 0.0, phase.width or 0.0, for_s)
    if phase.law == "day":
        return arrivals.day(rate, to, phase.at or 0.0, phase.period, for_s)
    return arrivals.constant(rate, for_s)


class _Maker:
    """Makes the steps of one traffic in one phase; what does not change from step to step is looked up once."""

    def __init__(self, traffic: Traffic, seed: int, phase: int) -> None:
        self.count = 0
        self._traffic = traffic
        self._phase = phase
        self._run_seed = seed
        self._payloads = _variants(traffic)
        self._edges = list(accumulate(b.share for b in traffic.behaviours))
        self._output = _fixed(traffic.output)
        # Looked up once: attributes of a pydantic model that are properties are slow.
        self._plain, self._name, self._stream, self._expect = (
            traffic.plain_options, traffic.name, traffic.stream, traffic.expect,
        )  # fmt: skip

    def step(self, index: int, round_: int, due_s: float | None, seed: int, ordinal: int) -> Step:
        traffic = self._traffic
        behaviour, options = "plain", self._plain
        draws = Rng(seed)
        if self._edges:
            at = bisect_right(self._edges, draws.share())
            if at < len(self._edges):
                behaviour, options = traffic.behaviours[at].name, traffic.behaviours[at].options
        return Step(
            index,
            self._phase,
            round_,
            due_s,
            self._name,
            seed,
            self._payloads[ordinal % len(self._payloads)],
            behaviour,
            options,
            self._output or _drawn(traffic.output, draws),
            self._stream,
            self._expect,
            ordinal,
            self._run_seed,
        )


def _variants(traffic: Traffic) -> list[dict[str, Any]]:
    """The payload of step n is variant n modulo their number; most traffic has one."""
    options = dict(traffic.payload_options)
    # A protocol sees names only, and a payload may well have a number of turns.
    name = next((n for n, o in options.items() if isinstance(o, InTurns) and callable(o.turns)), None)
    if name is None:
        return [options]
    return [{**options, name: turn} for turn in cast("InTurns", options[name]).turns()]


def _fixed(output: OutputOptions) -> Output | None:
    wanted = output.exact or output.max
    if wanted is None or wanted.low != wanted.high:
        return None
    return Output(exact=wanted.low) if output.exact else Output(max=wanted.low)


def _drawn(output: OutputOptions, draws: Rng) -> Output:
    if output.exact is not None:
        return Output(exact=draws.between(output.exact.low, output.exact.high))
    wanted = output.max
    assert wanted is not None, "one of the two is given: the model sees to it"
    return Output(max=draws.between(wanted.low, wanted.high))
