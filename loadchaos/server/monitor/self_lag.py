"""Measure the lag of our own event loop. Every time we record may be late by so much."""

from __future__ import annotations

import asyncio
import time

from loadchaos.core.ledger.rows import Emit
from loadchaos.server.monitor.gaps import CoverageGap

_SLEEP_S = 0.25
_LATE_S = 1.0


async def watch_lag(emit: Emit) -> None:
    """Write a gap for each long lag of the loop and each jump of the wall clock, until cancelled."""
    gap = CoverageGap(emit, "", "watch")
    before_wall, before = time.time(), time.monotonic()
    while True:
        await asyncio.sleep(_SLEEP_S)
        wall, now = time.time(), time.monotonic()
        late_s = now - before - _SLEEP_S
        if late_s > _LATE_S:
            gap.report(late_s, "loadchaos itself did not run: starved of CPU, stopped or suspended")
        jump_s = (wall - before_wall) - (now - before)
        if abs(jump_s) > _LATE_S:
            gap.report(0.0, f"the wall clock was set by {jump_s:+.1f} s")
        before_wall, before = wall, now
