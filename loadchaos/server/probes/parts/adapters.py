"""Ask each LoRA adapter and the base model the same prompts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from loadchaos.core.ledger.rows import QuestionPart, QuestionRow, QuestionTime
from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.parts.base import ProbePart, idle_error
from loadchaos.server.probes.question import story

_PROMPTS = 3
_IDLE_TIMES = 2
_MOST_ADAPTERS = 8
_NOT_COMPARED = "LoRA adapters are not compared: "


class AdaptersPart(ProbePart):
    """Part `adapters`."""

    part: QuestionPart = "adapters"

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float, adapters: Sequence[str]) -> None:
        super().__init__(asker, rng, every_s=every_s)
        self._models = [asker.model, *adapters[:_MOST_ADAPTERS]]
        self._stories = [story(rng) for _ in range(_PROMPTS)]
        self.idle_questions = len(self._models) * _PROMPTS * _IDLE_TIMES

    async def learn(self) -> None:
        if len(self._models) == 1:
            self._turn_off(_NOT_COMPARED + "the server lists no LoRA adapters")
            return
        texts: dict[str, list[str]] = {}
        for model in self._models:
            for n in range(_PROMPTS):
                found = [await self._ask(model, n, "idle") for _ in range(_IDLE_TIMES)]
                if error := next((row["error"] for row in found if row["error"]), ""):
                    self._turn_off(f"{_NOT_COMPARED}{model}: {idle_error(error)}")
                    return
                texts.setdefault(model, []).append(found[-1]["text"])
        base, *adapters = self._models
        if same := [name for name in adapters if texts[name] == texts[base]]:
            self.notes.append(
                f"on the idle server the adapter{'s' * (len(same) > 1)} {', '.join(same)} answer"
                f"{'s' * (len(same) == 1)} all {_PROMPTS} prompts like the base model: not compared with it"
            )

    async def act(self) -> None:
        asked = [(model, n) for model in self._models for n in range(_PROMPTS)]
        self._rng.shuffle(asked)
        await asyncio.gather(*(self._ask(model, n, "load") for model, n in asked))

    async def _ask(self, model: str, n: int, when: QuestionTime) -> QuestionRow:
        return await self._asker.ask(self._stories[n], Purpose(self.part, f"prompt {n + 1}", when), model=model)
