"""Record gaps in the observation of a server, those of our own event loop included."""

from __future__ import annotations

import asyncio
import time

from loadchaos.core.ledger.rows import Emit, GapRow, LogLoss
from loadchaos.server.repeat import until_next_s

_REPEAT_S = 10.0
_SLEEP_S = 0.5
_LATE_S = 1.0


class CoverageGap:
    """Write `gap` rows for one source of one replica. A gap gets a row at its start, every 10 s, and at its end."""

    def __init__(self, emit: Emit, replica: str, source: str) -> None:
        self._emit, self._replica, self._source = emit, replica, source
        self._since: float | None = None
        self._written = 0.0

    def open(self, why: str) -> None:
        now = time.monotonic()
        first = self._since is None
        self._since = self._since or now
        if first or now - self._written > _REPEAT_S:
            self._written = now
            self.report(now - self._since, why)

    def close(self) -> None:
        if self._since is not None:
            self.report(time.monotonic() - self._since, "over")
            self._since = None

    def report(self, seconds: float, why: str, loss: LogLoss | None = None) -> None:
        row: GapRow = {
            "row": "gap",
            "at_ns": time.monotonic_ns(),
            "replica": self._replica,
            "source": self._source,
            "seconds": round(seconds, 3),
            "why": why,
        }
        if loss is not None:
            row["loss"] = loss
        self._emit(row)


async def watch_lag(emit: Emit) -> None:
    """Write a gap for each long lag of our loop, by which all our times may be late, and each jump of the wall clock."""
    gap = CoverageGap(emit, "", "watch")
    before_wall, before = time.time(), time.monotonic()
    while True:
        sleep_s = until_next_s(_SLEEP_S)
        await asyncio.sleep(sleep_s)
        wall, now = time.time(), time.monotonic()
        late_s = now - before - sleep_s
        if late_s > _LATE_S:
            gap.report(late_s, "loadchaos itself did not run: starved of CPU, stopped or suspended")
        jump_s = (wall - before_wall) - (now - before)
        if abs(jump_s) > _LATE_S:
            gap.report(0.0, f"the wall clock was set by {jump_s:+.1f} s")
        before_wall, before = wall, now
