"""Do a step again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_SHORTEST_WAIT_S = 0.05


async def repeat(
    every_s: float,
    step: Callable[[], Awaitable[None]],
    paused: Callable[[], bool] = lambda: False,
    shortest_wait_s: float = _SHORTEST_WAIT_S,
) -> None:
    """Begin `step` every `every_s` seconds until cancelled, except while `paused()` is true. One step at a time."""
    while True:
        begin_s = time.monotonic()
        if not paused():
            await step()
        await asyncio.sleep(max(begin_s + every_s - time.monotonic(), shortest_wait_s))
