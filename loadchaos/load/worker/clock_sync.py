"""The master's clock as a worker on another machine knows it: its own monotonic clock plus a measured offset."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

_WINDOW_NS = 60_000_000_000
TIMES = ("at_ns", "due_ns", "sent_ns", "first_byte_ns", "first_token_ns", "first_answer_ns", "last_byte_ns")
"""Keys of rows that are moments; what else ends in `_ns` is a length of time and the same on every clock."""


class MasterClock:
    """Offset by ping-pong: of the last minute's round trips the shortest counts, for it had the least room to lie.

    The true offset lies within half of that round trip (`rtt_ns`). A minute, because clocks of two machines run apart by
    some ten microseconds in a second.
    """

    def __init__(self) -> None:
        self.offset_ns = 0
        self.rtt_ns: int | None = None
        self._samples: deque[tuple[int, int, int]] = deque()  # taken_ns (own), rtt_ns, offset_ns

    def sample(self, sent_ns: int, theirs_ns: int, received_ns: int) -> None:
        """One round trip: sent and received by our clock, the master's clock in between."""
        rtt_ns = received_ns - sent_ns
        self._samples.append((received_ns, rtt_ns, theirs_ns - (sent_ns + received_ns) // 2))
        while self._samples[0][0] < received_ns - _WINDOW_NS:
            self._samples.popleft()
        _, self.rtt_ns, self.offset_ns = min(self._samples, key=lambda s: s[1])

    @property
    def samples(self) -> int:
        """How many round trips the offset rests on."""
        return len(self._samples)

    def now_ns(self) -> int:
        """What the master's clock says now."""
        return time.monotonic_ns() + self.offset_ns

    def translated(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with its moments in the master's clock, all by one offset, so that lengths of time stay exact."""
        found = dict(row)
        for key in TIMES:
            if found.get(key) is not None:
                found[key] += self.offset_ns
        return found
