"""Interface of what is asked beside the load."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from loadchaos.core.ledger.rows import QuestionPart
from loadchaos.server.probes.memory import ProbeMemory

_SHOWN = 160


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


@runtime_checkable
class RecallingPart(ProbePart, Protocol):
    """Part that can use what an earlier run on the same server has learned.

    Attributes:
        part: its name in the rows.
    """

    part: QuestionPart

    @property
    def incomplete(self) -> bool:
        """True if something is left to learn after `recall`."""

    async def recall(self, memory: ProbeMemory) -> bool:
        """Take what was learned; False: it does not hold any more."""


def idle_error(error: str) -> str:
    return f"the idle server gave an error: {error[:_SHOWN]}"
