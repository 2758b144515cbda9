"""Find the smallest set of launch flags that fails, and single remedies."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from loadchaos.campaigns.bisect import flag_parts
from loadchaos.campaigns.bisect.flag_parts import Flag
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import ESTIMATE_TRIES, LEAST_P, BudgetSpentError, Decider, Decision
from loadchaos.campaigns.minimise.leave_out import leave_out
from loadchaos.campaigns.minimise.minimiser import MOST_ROUNDS, raised
from loadchaos.campaigns.replay.estimate import FIXED_CONFIDENCE, tries_for_confidence


@dataclass(frozen=True)
class NeededPart:
    """A flag, or a key of its value, that cannot be left out. `decision` is that of the smallest set without it."""

    flag: Flag
    key: str | None
    decision: Decision

    def describe(self) -> str:
        return f"key {self.key} of {flag_parts.name_word(self.flag)}" if self.key else shlex.join(self.flag)


@dataclass(frozen=True)
class Remedy:
    """One change of the whole command. `confidence`: 1 minus the chance of its tries without a remedy."""

    change: str
    decision: Decision
    confidence: float = 0.0

    @property
    def proved(self) -> bool:
        """True if the failure did not come and that is no chance."""
        return not self.decision.fails and not self.decision.untriable and self.confidence >= FIXED_CONFIDENCE


@dataclass
class FlagFindings:
    """Result of a search. The smallest set fails in `successes` of `tries`. `before` has the same two numbers for all
    flags. `out_of_time`: the budget was spent before the end.
    """

    whole: Reduction
    smallest: Reduction
    before: tuple[int, int]
    successes: int = 0
    tries: int = 0
    needed: list[NeededPart] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    out_of_time: bool = False


class FlagSearch:
    """Search over the flags of one launch command. `left` is the number of candidates that are still to be tried,
    about; `reducing` while flags are left out for good.
    """

    def __init__(self, whole: Reduction, decider: Decider, changes: Sequence[Flag] = ()) -> None:
        self._whole, self._decider, self._changes = whole, decider, tuple(changes)
        self.left = 0
        self.reducing = self.out_of_time = False
        self.smallest = whole
        self._decisions: dict[str, Decision] = {}
        self._without: dict[tuple[Flag, str | None], Decision] = {}
        self._form: dict[Flag, Flag] = {}
        self._kept = [whole]

    async def run(self) -> FlagFindings | None:
        self._decider.step = "all flags"
        try:
            found = await raised(self._whole, self._decider, MOST_ROUNDS)
        except BudgetSpentError:
            self.out_of_time = True
            return None
        if found is None:
            return None
        self._whole, self._decider.p = found
        self.smallest = self._whole
        self._kept = [self._whole]
        estimate = self._decider.steps[-1]
        findings = FlagFindings(self._whole, self._whole, (estimate.successes, estimate.tries))
        findings.successes, findings.tries = findings.before
        try:
            self.reducing = True
            await self._reduce()
            self.reducing = False
            await self._validate(findings)
            findings.needed = self._needed()
            await self._prove_remedies(findings)
        except BudgetSpentError:
            findings.needed, findings.out_of_time = self._needed(), True
        findings.smallest = self.smallest
        return findings

    async def _reduce(self) -> None:
        whole = self._whole

        async def fails(kept: Sequence[Flag], block: Sequence[Flag]) -> bool:
            self.left = len(kept) + len(self._changes) + 1
            self._decider.step = f"without {', '.join(map(shlex.join, block))}"
            return await self._fails(whole.with_loose(kept), [(flag, None) for flag in block])

        loose = whole.loose
        kept = loose if loose and not await fails([], loose) else []
        for flag in await leave_out(kept, fails):
            await self._reduce_keys(flag)

    async def _reduce_keys(self, flag: Flag) -> None:
        names = flag_parts.keys(flag)
        flags = self.smallest.flags

        async def fails(kept: Sequence[str], block: Sequence[str]) -> bool:
            if not kept:
                return False
            self.left = len(kept) + len(self._changes) + 1
            shorter = flag_parts.with_keys(flag, kept)
            candidate = replace(self.smallest, flags=tuple(shorter if f == flag else f for f in flags))
            self._decider.step = f"without {', '.join(block)} of {flag_parts.name_word(flag)}"
            found = await self._fails(candidate, [(flag, name) for name in block])
            if found:
                self._form[flag] = shorter
            return found

        if len(names) > 1:
            await leave_out(names, fails)

    async def _fails(self, candidate: Reduction, left_out: Sequence[tuple[Flag, str | None]]) -> bool:
        key = candidate.key()
        if key not in self._decisions:
            self._decisions[key] = await self._decider.decide(candidate)
        decision = self._decisions[key]
        if decision.fails and candidate is not self._kept[-1]:
            self._kept.append(candidate)
            self.smallest = candidate
        elif len(left_out) == 1:
            self._without[left_out[0]] = decision
        return decision.fails

    async def _validate(self, findings: FlagFindings) -> None:
        """Count how often the smallest set fails. Return to a larger one where it fails too rarely."""
        while len(self._kept) > 1:
            candidate = self._kept[-1]
            self._decider.step = "smallest set"
            failed, tries = await self._decider.estimate(candidate, ESTIMATE_TRIES)
            if tries and failed / tries >= LEAST_P:
                findings.successes, findings.tries = failed, tries
                return
            self._kept.pop()
            self.smallest = self._kept[-1]
            for flag in self.smallest.flags:
                if flag not in candidate.flags:
                    self._without[flag, None] = self._decider.steps[-1]

    def _needed(self) -> list[NeededPart]:
        found = []
        for (flag, key), decision in self._without.items():
            now = self._form.get(flag, flag)
            if now in self.smallest.flags and (key is None or key in flag_parts.keys(now)):
                found.append(NeededPart(flag, key, decision))
        return found

    def _single_changes(self, needed: Sequence[NeededPart]) -> Iterator[tuple[str, Reduction]]:
        whole = self._whole
        for part in needed:
            if part.decision.untriable:
                continue
            if part.key is None:
                flags = tuple(f for f in whole.flags if f != part.flag)
                yield f"without {shlex.join(part.flag)}", replace(whole, flags=flags)
            else:
                rest = [k for k in flag_parts.keys(part.flag) if k != part.key]
                shorter = flag_parts.with_keys(part.flag, rest)
                flags = tuple(shorter if f == part.flag else f for f in whole.flags)
                yield f"without {part.describe()}", replace(whole, flags=flags)
        for change in self._changes:
            yield f"with {shlex.join(change)}", replace(whole, flags=flag_parts.changed(whole.flags, change))

    async def _prove_remedies(self, findings: FlagFindings) -> None:
        before = [number < findings.before[0] for number in range(findings.before[1])]
        changes = list(self._single_changes(findings.needed))
        # Each change may survive by chance: all of them together at most as often as one.
        tries, confidence = tries_for_confidence(before, 1 - (1 - FIXED_CONFIDENCE) / max(1, len(changes)))
        known = {self._whole.key()}
        for number, (text, candidate) in enumerate(changes):
            self.left = len(changes) - number
            self._decider.step = text
            if candidate.key() in known:
                continue
            known.add(candidate.key())
            decision = await self._decider.survives(candidate, tries)
            whole_count = decision.tries == tries and not decision.fails
            findings.remedies.append(Remedy(text, decision, confidence if whole_count else 0.0))
