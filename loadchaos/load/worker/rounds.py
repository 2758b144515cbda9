"""Hand out a closed phase's steps to free users, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadchaos.core.model import Step


class Rounds:
    """Steps of a closed phase. `on_change(round, "begin" or "end")` is called at each change. With `drain`, a new round
    begins only by `begin_round`: until then `next_step` returns None.
    """

    def __init__(self, steps: Iterator[Step], on_change: Callable[[int, str], None], *, drain: bool) -> None:
        self._steps = steps
        self._on_change = on_change
        self._drain = drain
        self._round: int | None = None
        self._next = next(steps, None)

    def begin_round(self) -> bool:
        """Begin the next round. Returns False when there is none. All requests of the last one have ended."""
        self.end_round()
        if self._next is None:
            return False
        self._round = self._next.round
        self._on_change(self._round, "begin")
        return True

    def end_round(self) -> None:
        if self._round is not None:
            self._on_change(self._round, "end")
            self._round = None

    def next_step(self) -> Step | None:
        """Return the next step; returns None when the round is over."""
        step = self._next
        if step is None:
            return None
        if step.round != self._round:
            if self._drain:
                return None
            self.begin_round()
        self._next = next(self._steps, None)
        return step
