"""Steps of a run: due time, payload and behaviour of each request. Step i depends only on the run's seed and on i, so
each of N workers generates its own steps: worker i mod N sends step i.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from loadchaos.core.model import DEFAULT_OUTPUT_TOKENS, Output, Step
from loadchaos.core.rng import Rng, hash64, hash_prefix, hash_step
from loadchaos.profile import request_trace, trace
from loadchaos.profile.arrivals import pace, pacing_seed
from loadchaos.profile.profile import Profile
from loadchaos.profile.request_options import PayloadOptions
from loadchaos.profile.traffic import OutputOptions, Traffic

PHASE_STRIDE = 1_000_000_000
"""Steps of phase p are numbered from p times this, because a phase with a duration has no known number of steps."""

SentSteps = Sequence[Sequence[int]]
"""Index of the last step sent, for each earlier run of a plan and each of its workers (workers differ in speed)."""


def steps(profile: Profile, seed: int, worker: int = 0, workers: int = 1) -> Iterator[Step]:
    """Yield this worker's steps of all phases. Endless if a phase of users has a duration."""
    for number in range(len(profile.load)):
        yield from of_phase(profile, seed, number, worker, workers)


def of_phase(profile: Profile, seed: int, number: int, worker: int = 0, workers: int = 1) -> Iterator[Step]:
    """Yield this worker's steps of one phase. A phase of users with a duration is endless here: the caller ends it by
    the clock.
    """
    phase = profile.load[number]
    if phase.replay is not None:
        yield from _replayed(profile, seed, number, worker, workers)
        return
    sent = profile.traffic_of(phase)
    factories = [_StepFactory(traffic, seed, number) for traffic in sent]
    edges = list(accumulate(t.weight for t in sent))
    step_seeds = hash_prefix(hash64(seed, number), 2)
    base = number * PHASE_STRIDE
    last = len(edges) - 1
    recorded = trace.read(phase.trace) if phase.trace is not None else None
    for i, (round_, due_s) in enumerate(pace(phase, pacing_seed(seed, number))):
        step_seed = hash_step(step_seeds, i)
        factory = factories[min(last, bisect_right(edges, (step_seed >> 11) * 2.0**-53 * edges[-1])) if last else 0]
        ordinal = factory.count
        factory.count += 1
        if (base + i) % workers == worker:
            step = factory.step(base + i, round_, due_s, step_seed, ordinal)
            yield step if recorded is None else trace.apply(step, recorded[i], phase.block_tokens)


def _replayed(profile: Profile, seed: int, number: int, worker: int, workers: int) -> Iterator[Step]:
    phase = profile.load[number]
    recorded = request_trace.read(Path(phase.replay or ""))
    traffic = {t.name: t for t in profile.traffic}
    base = number * PHASE_STRIDE
    for i, (round_, due_s) in enumerate(pace(phase, pacing_seed(seed, number))):
        ordinal = i % len(recorded.sends)
        send = recorded.sends[ordinal]
        used = traffic.get(send.traffic) or profile.traffic[0]
        behaviour, options = next(iter(send.behaviour.items()), ("plain", {}))
        if i % workers == worker:
            yield Step(
                index=base + i,
                phase=number,
                round=round_,
                due_s=due_s,
                traffic=used.name,
                seed=hash64(seed, number, i),
                payload=used.payload_options,
                behaviour=behaviour,
                behaviour_options=options,
                output=Output(max=send.max_tokens or DEFAULT_OUTPUT_TOKENS),
                stream=send.stream,
                expect=send.expect,
                ordinal=ordinal,
                run_seed=seed,
            )


def is_left(index: int, sent: SentSteps) -> bool:
    """Tell if no earlier run of the plan has sent this step."""
    return all(index > last[index % len(last)] for last in sent)


class _StepFactory:
    """Makes the steps of one traffic in one phase. Everything that is the same for all steps is computed once."""

    def __init__(self, traffic: Traffic, seed: int, phase: int) -> None:
        self.count = 0
        self._traffic = traffic
        self._phase = phase
        self._run_seed = seed
        self._payloads = _payload_variants(traffic)
        self._edges = list(accumulate(b.share for b in traffic.behaviours))
        bounds = traffic.output.bounds
        self._output = _drawn_output(traffic.output, Rng(0)) if bounds.low == bounds.high else None
        # Read once: properties and attributes of a pydantic model are slow.
        self._plain = traffic.plain_options
        self._name = traffic.name
        self._stream = traffic.streams
        self._endpoint = traffic.endpoint
        self._path = traffic.sent_to.sent
        self._expect = traffic.expect

    def step(self, index: int, round_: int, due_s: float | None, seed: int, ordinal: int) -> Step:
        traffic = self._traffic
        behaviour, options = "plain", self._plain
        output = self._output
        if self._edges or output is None:
            rng = Rng(seed)
        if self._edges:
            at = bisect_right(self._edges, rng.share())
            if at < len(self._edges):
                behaviour, options = traffic.behaviours[at].name, traffic.behaviours[at].options
        return Step(
            index=index,
            phase=self._phase,
            round=round_,
            due_s=due_s,
            traffic=self._name,
            seed=seed,
            payload=self._payloads[ordinal % len(self._payloads)],
            behaviour=behaviour,
            behaviour_options=options,
            output=output or _drawn_output(traffic.output, rng),
            stream=self._stream,
            expect=self._expect,
            ordinal=ordinal,
            run_seed=self._run_seed,
            endpoint=self._endpoint,
            path=self._path,
        )


def _payload_variants(traffic: Traffic) -> list[dict[str, PayloadOptions]]:
    options = dict(traffic.payload_options)
    for name, one in options.items():
        if len(variants := one.in_turn()) > 1:
            return [{**options, name: variant} for variant in variants]
    return [options]


def _drawn_output(output: OutputOptions, rng: Rng) -> Output:
    tokens = rng.between(output.bounds.low, output.bounds.high)
    return Output(exact=tokens) if output.exact else Output(max=tokens)
