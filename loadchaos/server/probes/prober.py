"""Ask questions before, beside and after the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from loadchaos.server.probes.ask import Asker
from loadchaos.server.probes.parts.base import ProbePart

_CHECK_S = 60.0
_SHORTEST_WAIT_S = 0.05


class Prober:
    """Runs the parts of `correctness`.

    Call `learn`, `start`, `stop`, `check` and `close` in this order.
    """

    def __init__(self, asker: Asker, parts: Sequence[ProbePart]) -> None:
        self._asker, self._parts = asker, parts
        self._tasks: list[asyncio.Task[None]] = []

    async def learn(self) -> list[str]:
        """Ask the idle server; returns notes for the user."""
        for part in self._parts:
            await part.learn()
        return [note for part in self._parts for note in getattr(part, "notes", ())]

    def start(self, paused: Callable[[], bool]) -> None:
        """Ask until `stop`, except while `paused()` is true."""
        self._tasks = [asyncio.create_task(self._run(part, paused)) for part in self._parts]

    async def stop(self) -> None:
        """Stop; questions in flight are not waited for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def check(self) -> None:
        """Ask again on the idle server what was answered wrong."""
        try:
            async with asyncio.timeout(_CHECK_S):
                for part in self._parts:
                    await part.check()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Close the connections."""
        await self._asker.close()

    async def _run(self, part: ProbePart, paused: Callable[[], bool]) -> None:
        while True:
            begin_s = time.monotonic()
            if not paused():
                await part.act()
            await asyncio.sleep(max(begin_s + part.every_s - time.monotonic(), _SHORTEST_WAIT_S))
