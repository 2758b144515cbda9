"""Minimise a candidate: raise its probability, then reduce level by level."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from loadchaos.runner.minimise.candidate import Reduction
from loadchaos.runner.minimise.decider import LEAST_P, WRONG, BudgetSpentError, Decider, Decision
from loadchaos.runner.minimise.reductions import LEVELS, Fails

_ESTIMATE_TRIES = 8
_WANTED_P = 0.9
RAISED_BELOW = 0.5
_ONE_SURVIVOR_WRONG, _OFTEN = 0.25, 0.9
_SIMPLER = ("likeliest requests", "client behaviours", "features", "lengths", "timing")
"""Levels that make the reproducer simpler, not smaller."""
MOST_ROUNDS = 50
Level = tuple[str, Callable[[Reduction, Fails], Awaitable[Reduction]]]


@dataclass
class Minimised:
    """Smallest candidate found.

    `levels` has each level with the decisions made in it. `out_of_time`: the budget was spent before the last level.
    `kept` has each candidate that failed, the smallest last.
    """

    candidate: Reduction
    p: float
    tries: int = 0
    out_of_time: bool = False
    levels: list[tuple[str, int, int, list[Decision]]] = field(default_factory=list)
    kept: list[Reduction] = field(default_factory=list)


async def minimise(
    whole: Reduction, decider: Decider, levels: tuple[Level, ...] = LEVELS, most_rounds: int = MOST_ROUNDS
) -> Minimised | None:
    """Reduce a candidate. Returns None where the whole does not fail again."""
    decider.step = "the whole"
    try:
        found = await raised(whole, decider, most_rounds)
    except BudgetSpentError:
        return None
    if found is None:
        return None
    candidate, decider.p = found
    result = Minimised(candidate, decider.p, kept=[candidate])
    for name, reduce in levels:
        decider.step, decider.wrong = name, error_of(name, decider.p)
        before = len(decider.steps)
        best = _Best(candidate, decider, result.kept)
        try:
            candidate = await reduce(candidate, best.fails)
        except BudgetSpentError:
            candidate, result.out_of_time = best.candidate, True
        result.levels.append((name, candidate.requests, len(candidate.flags), decider.steps[before:]))
        if result.out_of_time:
            break
    result.candidate, result.tries = candidate, decider.tries
    return result


def error_of(level: str, p: float) -> float:
    """Error of the decisions of a level, from the probability of the whole.

    Where it is larger, one survivor is enough to keep what was left out. That makes a reproducer longer at worst; but a flag
    that is kept is called necessary.
    """
    return _ONE_SURVIVOR_WRONG if level in _SIMPLER or (p >= _OFTEN and "flags" not in level) else WRONG


class _Best:
    """Newest candidate that still failed, for a level that is cut short.

    `kept` gets all of them.
    """

    def __init__(self, candidate: Reduction, decider: Decider, kept: list[Reduction]) -> None:
        self.candidate, self._decider, self._kept = candidate, decider, kept

    async def fails(self, candidate: Reduction) -> bool:
        found = await self._decider.fails(candidate)
        if found:
            self.candidate = replace(candidate, change="")
            self._kept.append(self.candidate)
        return found


async def raised(whole: Reduction, decider: Decider, most_rounds: int) -> tuple[Reduction, float] | None:
    """Estimate how often the whole fails; repeat it where that is rare.

    Returns the candidate with its rounds and its probability. None: it does not fail often enough, however often it is
    repeated.
    """
    rounds = whole.rounds
    while True:
        candidate = replace(whole, rounds=rounds)
        successes, tries = await decider.estimate(candidate, _ESTIMATE_TRIES)
        p = successes / tries if tries else 0.0
        if p >= RAISED_BELOW or (rounds >= most_rounds and p >= LEAST_P):
            return candidate, p
        if not tries or rounds >= most_rounds:
            return None
        rounds = min(most_rounds, max(rounds * 2, rounds_needed(rounds, max(p, 1 / (2 * tries)))))


def rounds_needed(rounds: int, p: float) -> int:
    """Compute the rounds for p = 0.9, from the p of `rounds` rounds."""
    of_one = 1 - math.pow(1 - p, 1 / rounds)
    return math.ceil(math.log(1 - _WANTED_P) / math.log(1 - of_one))
