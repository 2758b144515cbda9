"""Decide when the ring is kept: after a death, or at an error rate."""

from __future__ import annotations

import time
from collections import deque

from loadchaos.campaigns.recorder.tap import TappedExchange
from loadchaos.core.model import BLAMELESS
from loadchaos.server.dialects import any_server

WINDOW_S = 30.0
"""Time over which `--freeze-on 'error-rate>...'` counts."""
FEWEST = 20
"""Requests in this time from which on their share counts."""
_CUT = ("reset", "truncated")
_HEALTH_PATHS = (b"/health", b"/health_generate", b"/healthz", b"/ping")


def says_dead(status: int, text: bytes, *, health: bool = False) -> bool:
    if status < 500 and not (200 <= status < 300):
        return False
    of_health = health and status >= 500
    patterns = any_server(lambda dialect: (*dialect.engine_dead, *(dialect.health_dead if of_health else ())))
    words = text.decode("utf-8", "replace")
    return any(pattern.search(words) for pattern in patterns)


class FreezeWatch:
    """Folds the ends of exchanges. The server has to live before its death counts, and again before the next one: it
    answers a POST request, or accepts one and is cut off while it answers. `suspect` is True after an answer was cut: then
    the server has to be asked.
    """

    def __init__(self, most_failed: float | None) -> None:
        self._most_failed = most_failed
        self._window: deque[tuple[int, bool]] = deque()
        self._failed = 0
        self._lived = False
        self._died_ns = -1
        self._rate_armed = True
        self.suspect = False

    def feed(self, exchange: TappedExchange) -> str | None:
        outcome = exchange.outcome
        if outcome == "ok" or outcome in _CUT or exchange.tokens:
            # /metrics answers beside a dead engine, and answers made before the death come after it.
            self._lived = self._lived or (exchange.recorded and exchange.at_ns > self._died_ns)
        if outcome != "ok" and self._says_dead(exchange):
            return self.died("the server says that its engine is dead")
        if outcome == "connect_error":
            return self.died("the server refuses connections")
        self.suspect = self.suspect or outcome in _CUT
        return self._rate(exchange) if exchange.recorded else None

    def died(self, reason: str) -> str | None:
        """Return the reason the first time after the server has lived."""
        self.suspect = False
        if not self._lived:
            return None
        self._lived = False
        self._died_ns = time.monotonic_ns()
        return f"engine died: {reason}"

    def _says_dead(self, exchange: TappedExchange) -> bool:
        if exchange.status < 500 and exchange.outcome not in ("stream_error", "finish_error"):
            return False
        return says_dead(exchange.status, exchange.end_text, health=exchange.path in _HEALTH_PATHS)

    def _rate(self, exchange: TappedExchange) -> str | None:
        if self._most_failed is None or exchange.outcome == "aborted":
            return None
        now = time.monotonic_ns()
        failed = exchange.outcome not in BLAMELESS
        self._window.append((now, failed))
        self._failed += failed
        while self._window[0][0] < now - WINDOW_S * 1e9:
            self._failed -= self._window.popleft()[1]
        count = len(self._window)
        exceeded = count >= FEWEST and self._failed > self._most_failed * count
        if exceeded and self._rate_armed:
            self._rate_armed = False
            return f"error rate: {self._failed} of {count} requests failed in {WINDOW_S:g} s"
        if self._failed <= self._most_failed * count / 2:
            self._rate_armed = True
        return None
