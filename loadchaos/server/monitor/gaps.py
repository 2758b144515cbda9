"""Where the watcher was blind, and for how long: a gap is told when it begins, each 10 s, and when it ends."""

from __future__ import annotations

import time

from loadchaos.core.ledger.rows import Emit

_AGAIN_S = 10.0


class CoverageGap:
    """The blindness of one source of one replica. Times are of time.monotonic()."""

    def __init__(self, emit: Emit, replica: str, source: str) -> None:
        self._emit, self._replica, self._source = emit, replica, source
        self._since: float | None = None
        self._told = 0.0

    def blind(self, why: str) -> None:
        """Nothing was seen just now."""
        now = time.monotonic()
        first = self._since is None
        self._since = self._since or now
        if first or now - self._told > _AGAIN_S:
            self._told = now
            self._row(now - self._since, why)

    def seeing(self) -> None:
        """Something was seen again."""
        if self._since is not None:
            self._row(time.monotonic() - self._since, "over")
            self._since = None

    def once(self, seconds: float, why: str) -> None:
        """Something was missed, and it is over already."""
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
