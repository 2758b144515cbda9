"""Interface of what is asked beside the load."""

from __future__ import annotations

from typing import Protocol


class ProbePart(Protocol):
    """One part of `correctness`.

    Attributes:
        every_s: seconds between two calls of `act`.
    """

    every_s: float

    async def learn(self) -> None:
        """Ask the idle server."""

    async def act(self) -> None:
        """Ask beside the load."""

    async def check(self) -> None:
        """Ask again after the load."""
