"""Decide by tries if a candidate still fails; keep all decisions on disk."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from loadchaos.campaigns.campaign import SavedState
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.core.stats import SequentialTest

SCHEMA = 3
"""Raised with each change of the rules that decisions were made by."""
LEAST_P = 0.15
"""A reproducer that fails less often is dropped."""
_KEPT_SHARE, _LOST_SHARE = 0.7, 0.1
WRONG = 0.1
"""Error of a decision about requests and flags."""
_MOST_TRIES = 60
ESTIMATE_TRIES = 8
"""Tries from which the probability of a failure is estimated."""
SMALL = 10
"""A candidate with more requests is only a step on the way: a wrong decision about it does less harm."""
Attempt = Callable[[Reduction], Awaitable[bool | None]]
"""One try: True: the failure came. False: it did not. None: it cannot be tried, as its server does not start."""


class BudgetSpentError(Exception):
    """Signal that no time is left for another try."""


@dataclass(frozen=True)
class Decision:
    """Decision about one candidate. `successes` of `tries` failed as expected. `why`: reason why it could not be tried."""

    fails: bool
    successes: int
    tries: int
    step: str = ""
    requests: int = 0
    flags: int = 0
    seconds: float = 0.0
    why: str = ""

    @property
    def untriable(self) -> bool:
        """True if no try of the candidate proved anything."""
        return self.tries == 0


@dataclass(frozen=True)
class _Decisions:
    decisions: Mapping[str, Decision]


class Decider:
    """Sequential tests of candidates against the probability of the whole. `settings` are those on which all decisions
    depend: a saved state with others is refused (OptionError). `step` is the name of the current step; `why` is set by
    an attempt that returns None; `counting` while tries are counted whose share matters, and not only a decision;
    `wrong` is the error of a decision, `lucky` that of the decision that a small candidate fails, where it is not the
    same. `hide` removes secrets from texts that are kept. `reserve_s`: time of the budget that is for what follows.
    """

    def __init__(
        self, attempt: Attempt, state: SavedState | None, report: Callable[[Decision], None], budget_s: float
    ) -> None:
        self._attempt, self._report = attempt, report
        self._deadline_s = time.monotonic() + budget_s
        self.p = 1.0
        self.tries = 0
        self.steps: list[Decision] = []
        self._state = state
        self._known = {} if state is None else dict(state.load(_Decisions).decisions)
        self._save()  # an interruption before the first decision can be continued, too
        self.step = self.why = ""
        self.counting = False
        self.wrong = WRONG
        self.lucky: float | None = None
        self.hide: Callable[[str], str] = str
        self.reserve_s: Callable[[], float] = lambda: 0.0

    async def decide(self, candidate: Reduction) -> Decision:
        """Tell if the candidate fails about as often as the whole did. Raises BudgetSpentError when no time is left."""
        test = self.test(candidate.requests)
        return await self._remembered(
            candidate, candidate.key(), _MOST_TRIES, lambda *_: test.decision is not None, test
        )

    async def estimate(self, candidate: Reduction, tries: int) -> tuple[int, int]:
        """Count how often a candidate fails. (successes, tries that proved something)."""
        # Two failures in two tries: it fails every time, as far as a minimiser needs to know.
        found = await self._remembered(
            candidate, f"{candidate.key()}-{tries}", tries, lambda failed, n: failed == n == 2
        )
        return found.successes, found.tries

    async def survives(self, candidate: Reduction, tries: int) -> Decision:
        """Try a candidate until it fails or has survived `tries` tries."""
        key = f"{candidate.key()}-survives-{tries}"
        return await self._remembered(candidate, key, tries, lambda failed, _: failed > 0)

    async def _remembered(
        self,
        candidate: Reduction,
        key: str,
        most: int,
        enough: Callable[[int, int], bool],
        test: SequentialTest | None = None,
    ) -> Decision:
        decision = self._known.get(key)
        if decision is None:
            self.counting = test is None
            decision = self._known[key] = await self._tried(candidate, most, enough, test)
            self._save()
        self.tries += decision.tries
        self.steps.append(decision)
        self._report(decision)
        return decision

    async def _tried(
        self, candidate: Reduction, most: int, enough: Callable[[int, int], bool], test: SequentialTest | None
    ) -> Decision:
        """Try a candidate until the numbers of failures and of tries are `enough`. `test` decides if it fails; without
        one, a single failure does.
        """
        begin_s, failed, tries = time.monotonic(), 0, 0
        while tries < most and not enough(failed, tries):
            if time.monotonic() > self._deadline_s - self.reserve_s():
                raise BudgetSpentError
            self.why = ""
            found = await self._attempt(candidate)
            if found is None:
                break
            failed, tries = failed + found, tries + 1
            if test is not None:
                test.add(found)
        fails = failed > 0 if test is None else bool(test.decision)
        step = self.hide(f"{self.step} ({candidate.change})" if candidate.change else self.step)
        seconds, flags = round(time.monotonic() - begin_s, 3), len(candidate.flags)
        return Decision(fails, failed, tries, step, candidate.requests, flags, seconds, self.hide(self.why))

    def decisions(self) -> Mapping[str, Decision]:
        return self._known

    def test(self, requests: int) -> SequentialTest:
        """Test of a candidate of so many requests. Does it fail about as often as the whole?"""
        lucky = self.lucky if requests <= SMALL else None
        high = min(0.95, max(LEAST_P, _KEPT_SHARE * self.p))
        return SequentialTest(high, high * _LOST_SHARE, self.wrong, lucky)

    @contextmanager
    def part_of_budget(self, share: float) -> Iterator[None]:
        """End a block quietly after this share of the time that is left."""
        whole_s, now_s = self._deadline_s, time.monotonic()
        self._deadline_s = min(whole_s, now_s + share * max(0.0, whole_s - now_s))
        try:
            yield
        except BudgetSpentError:
            if time.monotonic() > whole_s:
                raise
        finally:
            self._deadline_s = whole_s

    def _save(self) -> None:
        if self._state is not None:
            self._state.save(decisions=self._known)
