"""A request sent behind another on one connection before that was answered: its answer is what follows (RFC 9112, 9.3.2)."""

from __future__ import annotations

import time

from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.outcome import End
from loadchaos.load.wire.request import Progress, WireRequest
from loadchaos.load.wire.sockets import Slot

_LET_GO = "the server closed the connection behind the answer before it, as it may"
_BROKEN = "the connection was cut in an answer before it"


class PipelinedExchange(Exchange):
    """Waits for the answer before its own, then `take_over` and receive as any call.

    A server may close between two answers; what it then has not answered is no fault, and nobody asks again.
    """

    __slots__ = ("_before",)

    def __init__(self, wire: WireRequest, before: Exchange, slot: Slot, progress: Progress) -> None:
        """`wire` is fresh, and the slot one that nobody else uses."""
        super().__init__(wire, slot, progress, before.due_ns)
        self.connection_number = before.connection_number
        self.slowed = True  # its times are those of the answers before it, too
        self._resting = True
        self._before: Exchange | None = before
        before.followed = True

    def take_over(self) -> bool:
        """The answer before is over: what follows on the connection is ours. False where nothing can."""
        before, self._before = self._before, None
        assert before is not None, "once"
        self._resting = False
        self.sent_ns = before.sent_ns  # they all went out at once
        self._sent_all_ns = now = time.monotonic_ns()  # from here on silence is the server's
        if before.left is None:
            return self._finish(before.broke or "hung_up", _BROKEN if before.broke else _LET_GO)
        self._connection, excess = before.left
        if self._ended_from_outside:
            return self._finish("hung_up", "")
        return self._take(before.last_byte_ns or now, excess) if excess else True

    def silence_ns(self, now_ns: int) -> int:
        """While it waits, that of the answer before."""
        return super().silence_ns(now_ns) if self._before is None else self._before.silence_ns(now_ns)

    def _finish(self, end: End, why: str) -> bool:
        """As any call, but for a close before its first byte."""
        if end == "cut" and self.first_byte_ns is None and self._connection is not None:
            end, why = "hung_up", _LET_GO
        return super()._finish(end, why)
