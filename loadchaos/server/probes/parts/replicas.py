"""Send identical greedy requests at once."""

from __future__ import annotations

import asyncio
import random

from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.kinds import KINDS


class ReplicasPart:
    """Part `replicas`."""

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float, n: int) -> None:
        self._asker, self._rng, self.every_s, self._n = asker, rng, every_s, n

    async def learn(self) -> None:
        """Nothing: the requests are compared with each other."""

    async def act(self) -> None:
        question, group = KINDS["copy"](self._rng), self._asker.new_group()
        purpose = Purpose("replicas", "copy", "load", group)
        await asyncio.gather(*(self._asker.ask(question, purpose) for _ in range(self._n)))

    async def check(self) -> None:
        """Nothing."""
