"""Ask questions before, beside and after the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from loadchaos.server.memory import Learned, ProbeMemory
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.parts.base import ProbePart
from loadchaos.server.repeat import repeat

_CHECK_S = 60.0


class Prober:
    """Runs the parts of `correctness`. Call `learn`, `start`, `stop` and `check` in this order."""

    def __init__(self, asker: RecordedAsker, parts: Sequence[ProbePart], memory: ProbeMemory | None = None) -> None:
        self._asker, self._parts, self._memory = asker, parts, memory
        self._tasks: list[asyncio.Task[None]] = []
        self.idle_questions = sum(part.idle_questions for part in parts)

    async def learn(self) -> list[str]:
        notes: list[str] = []
        for part in self._parts:
            if self._memory is None or not part.recalls:
                await part.learn()
                notes += part.notes
            else:
                notes += await self._learn_once(part, self._memory)
        return notes

    async def _learn_once(self, part: ProbePart, memory: ProbeMemory) -> Sequence[str]:
        known: Sequence[Learned] = ()
        notes: list[str] = []
        if memory.rows(part.part) and await part.recall(memory):
            known, notes = memory.rows(part.part), [*memory.notes(part.part)]
            for row in known:
                again: Any = {**row, "at_ns": time.monotonic_ns()}
                self._asker.emit(again)
            if not part.incomplete:
                return notes
        rows: list[Learned] = []
        self._asker.kept = rows
        try:
            await part.learn()
        finally:
            self._asker.kept = None
        notes += part.notes
        memory.keep(part.part, [*known, *rows], notes)
        return notes

    def start(self, paused: Callable[[], bool]) -> None:
        asking = [part for part in self._parts if not part.off]
        self._tasks = [asyncio.create_task(repeat(part.every_s, part.act, paused)) for part in asking]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def check(self) -> None:
        try:
            async with asyncio.timeout(_CHECK_S):
                for part in self._parts:
                    await part.check()
        except TimeoutError:
            return
