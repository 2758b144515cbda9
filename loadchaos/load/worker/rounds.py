"""The steps of a closed phase, handed out round by round to whoever is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadchaos.core.model import Step


class Rounds:
    """`told` hears of each round's begin and end. Between rounds that are drained `take` gives nobody anything."""

    def __init__(self, steps: Iterator[Step], told: Callable[[int, str], None], *, drain: bool) -> None:
        self._steps = steps
        self._told = told
        self._drain = drain
        self._round: int | None = None
        self._next = next(steps, None)

    def begin(self) -> bool:
        """Begin the next round; False when all are over. What was taken before is over by then."""
        self.end()
        if self._next is None:
            return False
        self._round = self._next.round
        self._told(self._round, "begin")
        return True

    def end(self) -> None:
        """The round that goes on, if one does, is over."""
        if self._round is not None:
            self._told(self._round, "end")
            self._round = None

    def take(self) -> Step | None:
        """The next step; None when the round is over."""
        step = self._next
        if step is None:
            return None
        if step.round != self._round:
            if self._drain:
                return None
            self.begin()
        self._next = next(self._steps, None)
        return step
