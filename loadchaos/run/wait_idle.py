"""Wait until a server's gauges show no running and no waiting requests."""

from __future__ import annotations

import time

from loadchaos.core.ledger.rows import as_typed
from loadchaos.core.model import Row
from loadchaos.server.dialects import SLOWEST_GAUGES_S

_FORGOTTEN_NS = 2_000_000_000  # a correct server drops an aborted request in a tenth of this
_LONGEST_NS = _FORGOTTEN_NS + int(SLOWEST_GAUGES_S * 1e9)  # by then every gauge was updated


class IdleWait:
    """Reader of `metrics` rows that knows when a server has become idle."""

    def __init__(self) -> None:
        self._busy: dict[str, tuple[int, float]] = {}  # by engine: time of the gauges, requests

    def feed(self, row: Row) -> None:
        typed = as_typed(row)
        if typed["row"] == "metrics" and "requests_running" in (values := typed.get("values") or {}):
            busy = values["requests_running"] + values.get("requests_waiting", 0)
            self._busy[f"{typed['replica']} {typed['engine']}"] = (typed["at_ns"], busy)

    def idle_since(self, begin_ns: int) -> bool:
        """True when each engine was idle after `begin_ns`, or waiting is useless: no gauges, or all were updated since."""
        if not self._busy or time.monotonic_ns() - begin_ns >= _LONGEST_NS:
            return True
        newest = [busy for at_ns, busy in self._busy.values() if at_ns > begin_ns + _FORGOTTEN_NS]
        return len(newest) == len(self._busy) and not any(newest)
