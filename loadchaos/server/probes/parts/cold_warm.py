"""Ask one prompt as a miss and as a hit of the prefix cache."""

from __future__ import annotations

import random
from dataclasses import replace

from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.kinds import KINDS
from loadchaos.server.probes.question import words

_OPENING_WORDS = (8, 48)
_FILLERS = ("", " 7", " 7 7")
"""The length changes by single tokens, so that prompts end at and beside the edges of blocks."""


class ColdWarmPart:
    """Part `cold_warm`."""

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float) -> None:
        self._asker, self._rng, self.every_s = asker, rng, every_s

    async def learn(self) -> None:
        """Nothing: the two answers are compared with each other."""

    async def act(self) -> None:
        question, group = KINDS["copy"](self._rng), self._asker.new_group()
        opening = " ".join(words(self._rng, self._rng.randint(*_OPENING_WORDS))) + self._rng.choice(_FILLERS)
        question = replace(question, prompt=f"{opening}\n{question.prompt}")
        for role in ("cold", "warm"):
            row = await self._asker.ask(question, Purpose("cold_warm", "copy", "load", group, role))
            if row["error"]:
                return

    async def check(self) -> None:
        """Nothing."""
