"""A request pipelined behind another on one connection (RFC 9112, 9.3.2)."""

from __future__ import annotations

import time

from loadchaos.core.outcome_rules import End
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sockets import Slot

_CLOSED_BETWEEN = "the server closed the connection after the previous answer, which it may"
_CUT_BEFORE = "the connection was cut during a previous answer"


class PipelinedExchange(Exchange):
    """An exchange that waits for the answer before its own. Call `start_reading`, then receive as usual. A server may
    close between two answers. A request it then has not answered is no fault, and is not retried.
    """

    __slots__ = ("_before",)

    def __init__(self, request: Request, before: Exchange, slot: Slot, progress: Progress) -> None:
        """`request` is fresh, and no other exchange uses the slot."""
        super().__init__(request, slot, progress, before.due_ns)
        self.connection_number = before.connection_number
        self.slowed = True  # its times are those of the answers before it, too
        self._pausing = True
        self._before: Exchange | None = before
        before.has_successor = True

    def start_reading(self) -> bool:
        """Take the connection from the answer before. Returns False when nothing can follow."""
        before, self._before = self._before, None
        assert before is not None, "once"
        self._pausing = False
        self.sent_ns = before.sent_ns  # they all went out at once
        self._sent_all_ns = now = time.monotonic_ns()  # from here on silence is the server's
        if before.leftover is None:
            return self._finish(before.failure or "hung_up", _CUT_BEFORE if before.failure else _CLOSED_BETWEEN)
        self._connection, excess = before.leftover
        if self._ended_from_outside:
            return self._finish("hung_up", "")
        return self._feed(before.last_byte_ns or now, excess) if excess else True

    def silence_ns(self, now_ns: int) -> int:
        """Time without bytes, in ns; while waiting, that of the answer before."""
        return super().silence_ns(now_ns) if self._before is None else self._before.silence_ns(now_ns)

    def _finish(self, end: End, why: str) -> bool:
        """End the exchange. A close before its first byte is not the server's fault."""
        if end == "cut" and self.first_byte_ns is None and self._connection is not None:
            end, why = "hung_up", _CLOSED_BETWEEN
        return super()._finish(end, why)
