"""Estimate the master's clock on a worker of another machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from loadchaos.core.ledger.rows import FILES, MOMENT, fields_of

_WINDOW_NS = 60_000_000_000
TIMES = frozenset(field.name for kind in FILES[0].rows for field in fields_of(kind) if field.unit == MOMENT)
"""Keys of a worker's rows that are points in time; every other `_ns` is a duration, the same on every clock."""


class MasterClock:
    """The master's monotonic clock: ours plus an offset measured by ping-pong. Of the last minute's round trips the
    shortest counts, as its error is the smallest: at most half of its `rtt_ns`. Older ones do not count because two
    clocks drift apart by some 10 us per second.
    """

    def __init__(self) -> None:
        self.offset_ns = 0
        self.rtt_ns: int | None = None
        self._samples: deque[tuple[int, int, int]] = deque()  # taken_ns (own), rtt_ns, offset_ns

    def sample(self, sent_ns: int, theirs_ns: int, received_ns: int) -> None:
        rtt_ns = received_ns - sent_ns
        self._samples.append((received_ns, rtt_ns, theirs_ns - (sent_ns + received_ns) // 2))
        while self._samples[0][0] < received_ns - _WINDOW_NS:
            self._samples.popleft()
        _, self.rtt_ns, self.offset_ns = min(self._samples, key=lambda s: s[1])

    @property
    def samples(self) -> int:
        return len(self._samples)

    def now_ns(self) -> int:
        return time.monotonic_ns() + self.offset_ns

    def to_master_time(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a row's points in time, all by one offset: durations stay exact."""
        found = dict(row)
        for key in TIMES:
            if found.get(key) is not None:
                found[key] += self.offset_ns
        return found
