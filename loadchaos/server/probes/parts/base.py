"""Base of what is asked beside the load."""

from __future__ import annotations

import random
import time

from loadchaos.core.ledger.rows import LearnedRow, QuestionPart, QuestionRow, QuestionTime
from loadchaos.server.memory import ProbeMemory
from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.question import Question

_SHOWN = 160


class ProbePart:
    """One part of `correctness`. `every_s`: seconds between two calls of `act`; `notes`: for the user, after `learn`."""

    part: QuestionPart
    """Its name in the rows."""
    recalls = False
    """It can use what an earlier run on the same server has learned."""
    idle_questions = 0
    """The most that `learn` asks."""
    incomplete = False
    """Something is left to learn after `recall`."""

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float) -> None:
        self._asker, self._rng, self.every_s = asker, rng, every_s
        self.notes: list[str] = []
        self.off = False

    def _turn_off(self, note: str) -> None:
        """Ask nothing more: the note says why."""
        self.off = True
        self.notes.append(note)
        self._write_learned(self.part, note)

    def _write_learned(self, kind: str, why: str, *, exact: bool = False, asked: int = 0, right: int = 0) -> None:
        """Write what was learned of a kind of question, or of a part; `why`: why it is not used."""
        learned: LearnedRow = {
            "row": "learned", "at_ns": time.monotonic_ns(), "kind": kind, "used": not why, "exact": exact, "asked": asked,
            "right": right, "why": why,
        }  # fmt: skip
        self._asker.emit(learned)

    async def learn(self) -> None:
        """Ask the idle server."""

    async def recall(self, memory: ProbeMemory) -> bool:  # noqa: ARG002 - of those that use it
        """Take what was learned; False: it does not hold any more."""
        return True

    async def act(self) -> None:
        """Ask beside the load."""

    async def check(self) -> None:
        """Ask again after the load."""

    async def _send(
        self, question: Question, kind: str, when: QuestionTime, group: int = 0, role: str = "", *, stream: bool = False
    ) -> QuestionRow:
        return await self._asker.ask(question, Purpose(self.part, kind, when, group, role), stream=stream)


def idle_error(error: str) -> str:
    return f"the idle server gave an error: {error[:_SHOWN]}"
