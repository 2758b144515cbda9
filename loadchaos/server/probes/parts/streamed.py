"""Ask one prompt for a streamed and for a whole answer."""

from __future__ import annotations

import asyncio
import random

from loadchaos.core.ledger.rows import QuestionPart
from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.kinds import KINDS
from loadchaos.server.probes.memory import ProbeMemory

_IDLE_TIMES = 2


class StreamedPart:
    """Part `streamed`."""

    part: QuestionPart = "streamed"
    incomplete = False

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float) -> None:
        self._asker, self._rng, self.every_s = asker, rng, every_s

    async def learn(self) -> None:
        """Ask both ways on the idle server, where they may differ on purpose."""
        for _ in range(_IDLE_TIMES):
            question, group = KINDS["copy"](self._rng), self._asker.new_group()
            await self._asker.ask(question, Purpose("streamed", "copy", "idle", group, "streamed"), stream=True)
            await self._asker.ask(question, Purpose("streamed", "copy", "idle", group, "whole"))

    async def recall(self, memory: ProbeMemory) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing: the rows say whether pairs may be compared."""
        return True

    async def act(self) -> None:
        question, group = KINDS["copy"](self._rng), self._asker.new_group()
        await asyncio.gather(
            self._asker.ask(question, Purpose("streamed", "copy", "load", group, "streamed"), stream=True),
            self._asker.ask(question, Purpose("streamed", "copy", "load", group, "whole")),
        )

    async def check(self) -> None:
        """Nothing."""
