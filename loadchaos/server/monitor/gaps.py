"""Record gaps in the observation of a server."""

from __future__ import annotations

import time

from loadchaos.core.ledger.rows import Emit

_REPEAT_S = 10.0


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
            self._row(now - self._since, why)

    def close(self) -> None:
        if self._since is not None:
            self._row(time.monotonic() - self._since, "over")
            self._since = None

    def report(self, seconds: float, why: str) -> None:
        self._row(seconds, why)

    def _row(self, seconds: float, why: str) -> None:
        self._emit(
            {
                "row": "gap",
                "at_ns": time.monotonic_ns(),
                "replica": self._replica,
                "source": self._source,
                "seconds": round(seconds, 3),
                "why": why,
            }
        )
