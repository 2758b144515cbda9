"""Number of tries that a replay needs, and the sentence about its result."""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.core.stats import SequentialTest, chance_of_no_success, upper_bound_at_zero, wilson

OFTEN, RARELY = 0.5, 0.05
"""`--times auto` tells a failure that comes in half of the tries from one that comes in a twentieth, at 5 % error each."""
MOST_AUTO = 20
FIXED_CONFIDENCE = 0.95


class TryCount:
    """Decides after each try if another one is needed. With `times` None, a sequential test decides. With
    `until_failure`, the first failure is enough.
    """

    def __init__(self, times: int | None, *, until_failure: bool = False) -> None:
        self._times, self._until_failure = times, until_failure
        self._test = SequentialTest(OFTEN, RARELY)

    def add(self, reproduced: bool) -> None:
        self._test.add(reproduced)

    @property
    def done(self) -> bool:
        tries = self._test.successes + self._test.failures
        if self._times is not None:
            return tries >= self._times or (self._until_failure and self._test.successes > 0)
        return self._test.decision is not None or tries >= MOST_AUTO

    def left(self) -> tuple[int, bool]:
        """(tries still to come, True if that is the number and not a limit)."""
        tries = self._test.successes + self._test.failures
        if self._times is not None:
            return max(0, self._times - tries), True
        ahead = SequentialTest(OFTEN, RARELY)
        for success in [True] * self._test.successes + [False] * self._test.failures:
            ahead.add(success)
        mostly = self._test.successes > 0
        count = 0
        while ahead.decision is None and count < MOST_AUTO:
            ahead.add(mostly)
            count += 1
        return count, False


def probability(failed: int, tries: int) -> str:
    """Share of tries that failed, with its interval."""
    low, high = wilson(failed, tries)
    return f"p = {failed / tries if tries else 0:.2f}, 95 % CI {low:.2f} to {high:.2f}"


def result_line(reproduced: int, tries: int) -> str:
    if tries == 0:
        return "UNKNOWN: no try proved anything"
    if reproduced == 0:
        bound = upper_bound_at_zero(tries) or 1.0
        return f"NOT REPRODUCED 0 of {tries} (p < {bound:.2f} at 95 %)"
    return f"REPRODUCED {reproduced} of {tries} ({probability(reproduced, tries)})"


def fixed_confidence(tries: int, before: Sequence[bool]) -> float:
    """1 minus the chance of `tries` tries without the failure and without a remedy, given those before."""
    return 1 - chance_of_no_success(tries, sum(before), len(before))


def tries_for_confidence(before: Sequence[bool], wanted: float = FIXED_CONFIDENCE) -> tuple[int, float]:
    """Tries without the failure that a remedy needs, and their confidence."""
    tries = next(n for n in range(1, 10_000) if fixed_confidence(n, before) >= wanted)
    return tries, fixed_confidence(tries, before)


def against_line(reproduced: int, tries: int, before: Sequence[bool]) -> str:
    then = f"{sum(before)} of {len(before)} before"
    if tries == 0:
        return "UNKNOWN: no try against the other server proved anything"
    if reproduced:
        return f"STILL FAILS {reproduced} of {tries} ({then})"
    confidence = fixed_confidence(tries, before)
    name = "FIXED" if confidence >= FIXED_CONFIDENCE else "NOT PROVED FIXED"
    return f"{name} 0 of {tries} ({then}; confidence {confidence * 100:.0f} %)"
