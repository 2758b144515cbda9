"""Minimise a candidate: raise its probability, then reduce level by level."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from loadchaos.campaigns.minimise import reductions
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import ESTIMATE_TRIES, LEAST_P, WRONG, BudgetSpentError, Decider, Decision
from loadchaos.campaigns.minimise.full_cache import full_cache
from loadchaos.campaigns.minimise.reductions import Fails, first_guesses

_WANTED_P = 0.9
RAISED_BELOW = 0.5
_ONE_SURVIVOR_WRONG, _REPEATED_WRONG, _OFTEN = 0.33, 0.25, 0.9
LUCKY = 0.05
"""Error of the decision that a candidate fails: one failure is not enough.

The second one comes on a fresh server, as the first one killed the server of earlier tries.
"""
GUESSES, WHOLE, SCRIPT, FULL_CACHE = "likeliest requests", "the whole", "as a script", "full KV cache"
_SIMPLER = (GUESSES, "client behaviours", "features", "lengths", "timing")
"""Levels that make the reproducer simpler, not smaller."""
MOST_ROUNDS = 50
_MOST_IN_VAIN = 16
_GUESSED = 0.25
"""Part of the budget that is left, for tries before the first one of the whole."""
Level = tuple[str, Callable[[Reduction, Fails], Awaitable[Reduction]]]
LEVELS: tuple[Level, ...] = (
    ("attacks", reductions.attacks),
    ("request windows", reductions.windows),  # each try of the next levels costs half as much after each window
    ("timing", reductions.timing),
    ("outputs", reductions.outputs),
    (FULL_CACHE, full_cache),
    ("fewer and longer requests", reductions.fewer_longer),  # a script sends a smaller burst in less time
    ("smaller server", reductions.smaller_server),
    ("traffic kinds", reductions.traffic_kinds),
    ("single requests", partial(reductions.single_requests, most_in_vain=_MOST_IN_VAIN)),
    ("client behaviours", reductions.behaviours),
    ("lengths", reductions.lengths),
    ("features", reductions.features),
    ("single requests again", reductions.single_requests),
    ("timing", reductions.timing),
    ("launch flags", reductions.flags),
)


@dataclass
class Minimised:
    """Smallest candidate found. `levels` has each level with the decisions made in it. `out_of_time`: the budget was
    spent before the last level. `kept` has each candidate that failed, the smallest last.
    """

    candidate: Reduction
    p: float
    tries: int = 0
    out_of_time: bool = False
    levels: list[tuple[str, int, int, list[Decision]]] = field(default_factory=list)
    kept: list[Reduction] = field(default_factory=list)


async def minimise(
    whole: Reduction, decider: Decider, levels: tuple[Level, ...] = LEVELS, most_rounds: int = MOST_ROUNDS,
    *, scripts: bool = False,
) -> Minimised | None:  # fmt: skip
    """Reduce a candidate. Returns None where the whole does not fail again.

    Raises BudgetSpentError where no candidate failed before the end of the budget.

    With `scripts`, a candidate is tried by the script that would be its reproducer, as soon as such a script has failed:
    what fails only in a replay is no reproducer.
    """
    decider.lucky = LUCKY
    search = _Search(whole, decider, scripts)
    try:
        if not await search.begin(most_rounds):
            return None
    except BudgetSpentError:
        if not search.result.kept:
            raise
        search.result.out_of_time = True
        levels = ()
    for name, reduce in levels:
        try:
            await search.level(SCRIPT, search.as_script)
            await search.level(name, reduce)
        except BudgetSpentError:
            search.result.out_of_time = True
            break
    search.result.candidate, search.result.tries = search.candidate, decider.tries
    return search.result


class _Search:
    def __init__(self, whole: Reduction, decider: Decider, scripts: bool) -> None:
        self.candidate, self._whole, self._decider, self._scripts = whole, whole, decider, scripts
        self._unscripted = ""
        self.result = Minimised(whole, 1.0)

    async def begin(self, most_rounds: int) -> bool:
        if self._scripts:
            for name, reduce in ((GUESSES, _guess), (SCRIPT, self.as_script)):
                self.candidate = self._whole
                with self._decider.part_of_budget(_GUESSED):
                    await self.level(name, reduce)
                if self.result.kept:
                    return True
        self._decider.step = WHOLE
        found = await raised(self._whole, self._decider, most_rounds)
        if found is None:
            return False
        self.candidate, self._decider.p = found
        self._unscripted = self._unscripted if self.candidate.rounds == self._whole.rounds else ""
        self.result.p = self._decider.p
        self.result.kept.append(self.candidate)
        return True

    async def as_script(self, candidate: Reduction, fails: Fails) -> Reduction:
        if not self._scripts or candidate.as_script or candidate.key() == self._unscripted:
            return candidate
        self._unscripted = candidate.key()
        written = replace(candidate, as_script=True)
        return written if await fails(written) else candidate

    async def level(self, name: str, reduce: Callable[[Reduction, Fails], Awaitable[Reduction]]) -> None:
        decider = self._decider
        decider.step, decider.wrong = name, error_of(name, decider.p, self.candidate.rounds)
        before = len(decider.steps)
        try:
            self.candidate = await reduce(self.candidate, self._fails)
        finally:
            if steps := decider.steps[before:]:
                self.result.levels.append((name, self.candidate.requests, len(self.candidate.flags), steps))

    async def _fails(self, candidate: Reduction) -> bool:
        decision = await self._decider.decide(candidate)
        if decision.fails:
            self.candidate = replace(candidate, change="")
            self.result.kept.append(self.candidate)
            share = decision.successes / decision.tries
            if (
                self._decider.step == FULL_CACHE
            ):  # other requests: how often the recorded ones failed says nothing of them
                self._decider.p = self.result.p = share
            elif self._decider.step in (GUESSES, SCRIPT):
                self._decider.p = self.result.p = min(self._decider.p, share)
        return decision.fails


async def _guess(candidate: Reduction, fails: Fails) -> Reduction:
    return await first_guesses(replace(candidate, as_script=True), fails)


def error_of(level: str, p: float, rounds: int) -> float:
    """Error of the decisions of a level that a candidate does not fail. It depends on the probability of the whole, in
    so many rounds. Where it is large, one survivor is enough to keep what was left out. That makes a reproducer longer
    at worst; but a flag that is kept is called necessary.
    """
    if level == SCRIPT or (level not in _SIMPLER and (p < _OFTEN or "flags" in level)):
        return WRONG
    return _ONE_SURVIVOR_WRONG if rounds == 1 else _REPEATED_WRONG


async def raised(whole: Reduction, decider: Decider, most_rounds: int) -> tuple[Reduction, float] | None:
    """Estimate how often the whole fails; repeat it where that is rare. None: it never fails often enough."""
    rounds = whole.rounds
    while True:
        candidate = replace(whole, rounds=rounds)
        successes, tries = await decider.estimate(candidate, ESTIMATE_TRIES)
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
