"""Ask one prompt in several ways; the answers are compared with each other."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from loadchaos.core.ledger.rows import QuestionPart
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.kinds import copy
from loadchaos.server.probes.parts.base import ProbePart
from loadchaos.server.probes.question import words

_OPENING_WORDS = (8, 48)
_FILLERS = ("", " 7", " 7 7")
"""The length changes by single tokens, so that prompts end at and beside the edges of blocks."""
_IDLE_TIMES = 2


class ColdWarmPart(ProbePart):
    """Asks as a miss and as a hit of the prefix cache."""

    part: QuestionPart = "cold_warm"

    async def act(self) -> None:
        question, group = copy(self._rng), self._asker.new_group()
        opening = " ".join(words(self._rng, self._rng.randint(*_OPENING_WORDS))) + self._rng.choice(_FILLERS)
        question = replace(question, prompt=f"{opening}\n{question.prompt}")
        for role in ("cold", "warm"):
            if (await self._send(question, "copy", "load", group, role))["error"]:
                return


class ReplicasPart(ProbePart):
    """Sends `n` equal requests at once."""

    part: QuestionPart = "replicas"

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float, n: int) -> None:
        super().__init__(asker, rng, every_s=every_s)
        self._n = n

    async def act(self) -> None:
        question, group = copy(self._rng), self._asker.new_group()
        await asyncio.gather(*(self._send(question, "copy", "load", group) for _ in range(self._n)))


class StreamedPart(ProbePart):
    """Asks for a streamed and for a whole answer."""

    part: QuestionPart = "streamed"
    idle_questions = 2 * _IDLE_TIMES
    recalls = True  # the rows say whether pairs may be compared

    async def learn(self) -> None:
        """Ask both ways on the idle server, where they may differ on purpose."""
        for _ in range(_IDLE_TIMES):
            question, group = copy(self._rng), self._asker.new_group()
            await self._send(question, "copy", "idle", group, "streamed", stream=True)
            await self._send(question, "copy", "idle", group, "whole")

    async def act(self) -> None:
        question, group = copy(self._rng), self._asker.new_group()
        await asyncio.gather(
            self._send(question, "copy", "load", group, "streamed", stream=True),
            self._send(question, "copy", "load", group, "whole"),
        )
