"""Do a step again and again; `until_next_s` for steps that wake the process together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_SHORTEST_WAIT_S = 0.05


def until_next_s(every_s: float, after_s: float = 0.0) -> float:
    """Seconds to the next multiple of `every_s` on the monotonic clock, or to the one after it if that is near; to
    `after_s` after it. Tasks whose periods are multiples of each other wake together: waking is most of the CPU time of
    an idle process.
    """
    left_s = every_s - (time.monotonic() - after_s) % every_s
    return left_s if left_s > every_s / 10 else left_s + every_s


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
