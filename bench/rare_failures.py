"""Minimise failures of known probability, in virtual time: does the answer hold, and what does it cost?

`python -m bench.rare_failures [--seeds 20]` runs the engine of the embedded server without a clock. Its planted fault kills
it with probability p when two certain requests of 40 are computed in one step and the pipeline has more than one stage.
The minimiser has to find the two requests and the flag. The least number of tries is Wald's for each of its decisions: the
mean of the best test with the same errors, at the candidate's true probability.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import Decider
from loadchaos.campaigns.minimise.minimiser import error_of, minimise
from loadchaos.campaigns.minimise.reductions import flags, single_requests, windows
from loadchaos.core.stats import SequentialTest
from loadchaos.profile.request_trace import RequestTrace, TraceHeader, TraceSend
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest
from tests.simulator.virtual_time import closed_loop

REQUESTS, MOST_ROUNDS = 40, 400
FLAGS = ("--port", "--max-num-seqs", "--pipeline-parallel-size", "--no-enable-prefix-caching")
LEVELS = (("windows", windows), ("requests", single_requests), ("flags", flags))


class RareDeath:
    """A server with the fault; `attempt` is one try of a minimiser."""

    def __init__(self, p: float, seed: int) -> None:
        self.rng = random.Random(seed)
        self.p = p
        self.needed = {f"r{n}" for n in self.rng.sample(range(REQUESTS), 2)}
        self.tries = 0
        self.virtual_s = 0.0
        self.truth: dict[str, float] = {}

    def can_fail(self, found: Reduction) -> bool:
        """True if a candidate has all that the fault needs."""
        return self.needed <= {s.id for s in found.trace.sends} and ("--pipeline-parallel-size",) in found.flags

    async def attempt(self, found: Reduction) -> bool | None:
        """Send the candidate's requests; True if the engine died."""
        self.tries += 1
        self.truth[found.key()] = 1 - (1 - self.p) ** found.rounds if self.can_fail(found) else 0.0
        stages = 2 if ("--pipeline-parallel-size",) in found.flags else 1
        engine = Engine(EngineConfig(pipeline_parallel_size=stages, num_speculative_tokens=0))
        engine._rules.before_step.append(self.check)
        for number in range(found.rounds):
            loop = closed_loop(engine, self.requests(found, number), users=REQUESTS)
            self.virtual_s += loop.seconds
            if loop.fault is not None:
                return True
        return False

    def requests(self, found: Reduction, number: int) -> Iterator[EngineRequest]:
        """Yield the requests of one round: short ones, all at once."""
        for send in found.trace.sends:
            yield EngineRequest(f"{send.id}-{number}", 16, 1)

    def check(self, batch: Batch, config: EngineConfig) -> None:
        """Kill the engine where both requests are computed, with probability p."""
        here = {request.id.partition("-")[0] for request, *_ in batch.planned}
        if config.pipeline_parallel_size > 1 and self.needed <= here and self.rng.random() < self.p:
            raise EngineFault("the planted fault", ())


@dataclass
class Cost:
    """What one minimisation took, and if its answer holds."""

    holds: bool
    minimal: bool
    decisions: int
    tries: int
    least_tries: float
    raising: int
    virtual_s: float


def measure(p: float, seed: int) -> Cost:
    """Minimise a failure of probability p."""
    server = RareDeath(p, seed)
    sends = tuple(TraceSend(id=f"r{n}", at_s=0.0) for n in range(REQUESTS))
    trace = RequestTrace(TraceHeader(event="trace", version=1), sends)
    whole = Reduction(trace, ("serve",), tuple((name,) for name in FLAGS))
    decider = Decider(server.attempt, None, lambda _: None, budget_s=3600.0)
    found = asyncio.run(minimise(whole, decider, LEVELS, most_rounds=MOST_ROUNDS))
    raising = sum(d.tries for d in decider.steps if d.step == "the whole")
    if found is None:
        return Cost(False, False, 0, server.tries, 0.0, raising, server.virtual_s)
    small = found.candidate
    decided = {key: d for key, d in decider.decisions().items() if d.step != "the whole"}
    least = 0.0
    for key, decision in decided.items():
        decider.wrong = error_of(decision.step, decider.p, small.rounds)
        least += max(1.0, expected_tries(decider.test(decision.requests), server.truth[key]))
    minimal = {s.id for s in small.trace.sends} == server.needed and len(small.flags) == 2
    tries = sum(d.tries for d in decided.values())
    return Cost(server.can_fail(small), minimal, len(decided), tries, least, raising, server.virtual_s)


def expected_tries(test: SequentialTest, p: float) -> float:
    """Compute the mean number of tries until a decision, by Wald's identity. It is the theoretical minimum of all tests
    with these errors at p = `high` and p = `low`.
    """
    success, failure, upper, lower = test._success, test._failure, test._true_limit, test._false_limit
    drift = p * success + (1 - p) * failure
    if abs(drift) < 1e-12:
        return upper * lower / (p * success**2 + (1 - p) * failure**2)
    lucky = (math.exp(lower) - 1) / (math.exp(upper + lower) - 1)
    missed = (math.exp(upper) - 1) / (math.exp(upper + lower) - 1)
    shares = (1 - missed, missed) if drift > 0 else (lucky, 1 - lucky)
    return (shares[0] * upper - shares[1] * lower) / drift


def row(p: float, seeds: int) -> str:
    """Measure all seeds of one probability. Returns its row of the table."""
    costs = [measure(p, seed) for seed in range(seeds)]
    total = sum(c.tries for c in costs)
    least = sum(c.least_tries for c in costs)
    mean = [sum(getattr(c, name) for c in costs) / seeds for name in ("decisions", "tries", "least_tries", "raising")]
    return (
        f"| {p:g} | {sum(c.holds for c in costs)} of {seeds} | {sum(c.minimal for c in costs)} of {seeds} | {mean[0]:.0f} | "
        f"{mean[1]:.0f} | {mean[2]:.0f} | {total / max(1.0, least):.2f} | {mean[3]:.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    print("| p of a round | answer holds | two requests, one flag | decisions | tries | least | ratio | to raise p |")
    print("|---|---|---|---|---|---|---|---|")
    for p in (1.0, 0.3, 0.1, 0.02):
        print(row(p, args.seeds), flush=True)


if __name__ == "__main__":
    main()
