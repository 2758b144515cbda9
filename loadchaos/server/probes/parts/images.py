"""Ask one question about pictures that differ. Only pictures are used that the idle server tells from each other every
time: no right answer is needed, and a model with random weights is enough.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.core.ledger.rows import QuestionPart, QuestionRow, QuestionTime
from loadchaos.core.probe_pictures import DIGITS
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.kinds import NUMBER_TEXT
from loadchaos.server.probes.parts.base import ProbePart, idle_error
from loadchaos.server.probes.pictures import draw_number
from loadchaos.server.probes.question import question

PICTURES = 5
_IDLE_TIMES = 2
_FEWEST = 2


class ImagesPart(ProbePart):
    """Part `images`."""

    part: QuestionPart = "images"

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float) -> None:
        super().__init__(asker, rng, every_s=every_s)
        self._numbers: Sequence[str] = [str(n) for n in rng.sample(range(10 ** (DIGITS - 1), 10**DIGITS), PICTURES)]
        self._prefix, self._names = f"loadchaos-{rng.getrandbits(48):012x}", itertools.count()
        self._new_bytes_count = False
        self.idle_questions = 2 * _IDLE_TIMES * PICTURES + _FEWEST

    async def learn(self) -> None:
        answers: dict[str, set[str]] = {}
        for number in self._numbers:
            for role in ("same", "neighbour") * _IDLE_TIMES:
                row = await self._ask(number, role, "idle")
                if row["error"] or row["status"] != 200:
                    self._turn_off(f"questions about images are not asked: {idle_error(row['error'])}")
                    return
                answers.setdefault(number, set()).add(row["text"])
        texts = [text for found in answers.values() for text in found]
        self._numbers = [n for n, found in answers.items() if len(found) == 1 and texts.count(next(iter(found))) == 1]
        if len(self._numbers) < _FEWEST:
            self._turn_off(
                "questions about images are not compared: the idle server answers different images alike, or one image in "
                "different ways"
            )
            return
        await self._learn_names(answers)

    async def _learn_names(self, answers: dict[str, set[str]]) -> None:
        """Find out if other bytes under a known `uuid` count as another image."""
        name = self._name()
        for number in self._numbers[:_FEWEST]:
            row = await self._ask(number, "uuid", "idle", name)
        self._new_bytes_count = row["text"] in answers[number]
        if not self._new_bytes_count:
            text = "an image with a known uuid and other bytes is not asked under load: the idle server answers from "
            text += "the image that it has under this name"
            self._asker.emit(
                {"row": "preflight", "at_ns": time.monotonic_ns(), "name": self.part, "ok": True, "text": text}
            )

    async def act(self) -> None:
        """Ask about each picture at once, new to the server by one pixel."""
        asked = [self._ask(number, "neighbour", "load") for number in self._numbers]
        await asyncio.gather(*asked, self._ask(self._rng.choice(self._numbers), "same", "load"), self._named())

    async def _named(self) -> None:
        first, second = self._rng.sample(list(self._numbers), 2)
        name = self._name()
        await self._ask(first, "uuid", "load", name)
        await self._ask(second, "uuid", "load", name if self._new_bytes_count else self._name())
        if not self._new_bytes_count:
            await self._ask(first, "uuid", "load", name)

    async def _ask(self, number: str, role: str, when: QuestionTime, uuid: str = "") -> QuestionRow:
        mark = self._rng.getrandbits(24) if role == "neighbour" else 0
        asked = replace(question(NUMBER_TEXT, number), images=(draw_number(number, mark=mark),), uuid=uuid)
        return await self._send(asked, number, when, 0, role)

    def _name(self) -> str:
        return f"{self._prefix}-{next(self._names)}"
