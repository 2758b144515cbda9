"""Find the first release with a failure, and the first one without."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import ESTIMATE_TRIES, BudgetSpentError, Decider, Decision
from loadchaos.campaigns.minimise.minimiser import MOST_ROUNDS, RAISED_BELOW, raised
from loadchaos.campaigns.replay.estimate import fixed_confidence, tries_for_confidence

BAD, GOOD, SKIPPED = "bad", "good", "skipped"
_EACH_GOOD = 0.99
"""Confidence in each release without the failure; the confidence of a result is the product along its path."""


@dataclass(frozen=True)
class ReleaseResult:
    """Result of one release. `state`: BAD, GOOD or SKIPPED (`why`). `confidence`: 1 for a bad release, as the same
    failure came; for a good one 1 minus the chance of its tries with the failure.
    """

    version: str
    state: str
    decision: Decision | None = None
    confidence: float = 1.0
    why: str = ""


@dataclass(frozen=True)
class Boundary:
    """Two releases between which the failure came or went. `untested` are the skipped ones between them."""

    good: str
    bad: str
    confidence: float
    untested: tuple[str, ...] = ()


@dataclass
class VersionFindings:
    """Result of a search. A boundary is None if all releases on that side are bad, or were skipped. `anchor`: the
    release whose failures gave the probability.
    """

    anchor: str = ""
    first_bad: Boundary | None = None
    first_good: Boundary | None = None
    releases: list[ReleaseResult] = field(default_factory=list)
    out_of_time: bool = False


_TOO_RARE = f"it fails too rarely to tell releases apart, also when its requests are sent {MOST_ROUNDS} times"


class VersionSearch:
    """Search over the releases of a range, oldest first. `prepare` installs a release and returns why it cannot;
    `candidate` is its server. `left` is the number of releases that are still to be tried, at most.
    """

    def __init__(
        self, versions: Sequence[str], decider: Decider, candidate: Callable[[str], Reduction],
        prepare: Callable[[str], Awaitable[str]], known_bad: str | None = None,
    ) -> None:  # fmt: skip
        self._versions, self._decider, self._candidate = list(versions), decider, candidate
        self._prepare, self._known_bad = prepare, known_bad
        self._results: dict[int, ReleaseResult] = {}
        self._before: list[bool] = []
        self._rounds = 1
        self.left = 0

    async def run(self) -> VersionFindings:
        """Search. `anchor` is "" where no release fails."""
        findings = VersionFindings()
        try:
            anchor = await self._anchor()
            if anchor is not None:
                findings.anchor = self._versions[anchor]
                findings.first_bad = await self._boundary(0, anchor)
                findings.first_good = await self._boundary(len(self._versions) - 1, anchor)
        except BudgetSpentError:
            findings.out_of_time = True
        findings.releases = [self._results[i] for i in sorted(self._results)]
        return findings

    async def _anchor(self) -> int | None:
        """Find a release that fails: the known one, the newest, the oldest that can be tried."""
        newest = len(self._versions) - 1
        known = self._versions.index(self._known_bad) if self._known_bad in self._versions else None
        for places in ((known,) if known is not None else (), range(newest, -1, -1), range(newest)):
            for index in places:
                self.left = self._steps(0, newest)
                if await self._fails(index, raise_at_zero=index == known):
                    # Until now it was unknown how many tries without a failure mean something.
                    self._results = {i: r for i, r in self._results.items() if r.state != GOOD}
                    return index
                if self._results[index].state != SKIPPED:
                    break
        return None

    async def _fails(self, index: int, *, raise_at_zero: bool) -> bool:
        version = self._versions[index]
        if index in self._results:
            return False
        self._decider.step = version
        if why := await self._prepare(version):
            self._results[index] = ReleaseResult(version, SKIPPED, why=why)
            return False
        candidate = self._candidate(version)
        failed, tries = await self._decider.estimate(candidate, ESTIMATE_TRIES)
        if tries and failed / tries < RAISED_BELOW and (failed or raise_at_zero):
            found = await raised(candidate, self._decider, MOST_ROUNDS)
            failed, tries = self._decider.steps[-1].successes, self._decider.steps[-1].tries
            if found is None and failed:
                self._results[index] = ReleaseResult(version, SKIPPED, self._decider.steps[-1], why=_TOO_RARE)
                return False
            candidate = found[0] if found is not None else candidate
        self._rounds = candidate.rounds
        decision = self._decider.steps[-1]
        if not tries:
            self._results[index] = ReleaseResult(version, SKIPPED, decision, why=decision.why)
        elif failed:
            self._before += [number < failed for number in range(tries)]
            self._results[index] = ReleaseResult(version, BAD, decision)
        else:
            self._results[index] = ReleaseResult(version, GOOD, decision, confidence=0.0)
        return bool(failed)

    async def _boundary(self, end: int, bad: int) -> Boundary | None:
        step = 1 if end < bad else -1
        for good in range(end, bad, step):
            self.left = self._steps(good, bad)
            state = await self._test(good)
            if state == BAD:
                return None
            if state == GOOD:
                break
        else:
            return None
        path = [good]
        while between := [i for i in range(good + step, bad, step) if self._is_of_use(i)]:
            middle = between[len(between) // 2]
            self.left = self._steps(good, bad)
            state = await self._test(middle)
            if state == BAD:
                bad = middle
            elif state == GOOD:
                good = middle
                path.append(middle)
        confidence = round(math.prod(self._results[index].confidence for index in path), 4)
        untested = sorted(range(good + step, bad, step))
        names = self._versions
        return Boundary(names[good], names[bad], confidence, tuple(names[i] for i in untested))

    def _is_of_use(self, index: int) -> bool:
        return index not in self._results or self._results[index].state != SKIPPED

    async def _test(self, index: int) -> str:
        known = self._results.get(index)
        if known is None:
            known = self._results[index] = await self._tried(self._versions[index])
        return known.state

    async def _tried(self, version: str) -> ReleaseResult:
        self._decider.step = version
        if why := await self._prepare(version):
            return ReleaseResult(version, SKIPPED, why=why)
        tries, _ = tries_for_confidence(self._before, _EACH_GOOD)
        decision = await self._decider.survives(replace(self._candidate(version), rounds=self._rounds), tries)
        if decision.fails:
            result = ReleaseResult(version, BAD, decision)
            self._before += [number < decision.successes for number in range(decision.tries)]
        elif decision.untriable or decision.why:
            result = ReleaseResult(version, SKIPPED, decision, why=decision.why)
        else:
            result = ReleaseResult(version, GOOD, decision, fixed_confidence(decision.tries, self._before))
        return result

    @staticmethod
    def _steps(good: int, bad: int) -> int:
        return max(1, abs(good - bad)).bit_length()
