"""Kernel packet timestamps (SO_TIMESTAMPNS), converted to monotonic ns.

Linux puts the arrival beside the bytes where a socket asks for it (for TCP since 4.13: commit 98aaa913b4ed), as a time
of the wall clock. A process that reads late still has the right time. Wall clock and monotonic clock are slewed alike, so
they differ by one number until somebody sets the wall clock.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence

from loadchaos.core.units import NS_PER_S

_TIMESTAMPNS = 35 if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
"""asm-generic/socket.h; Python's socket module has no name for it. Its value is a struct timespec."""
_timespec = struct.Struct("qq")
ANCILLARY_BYTES = socket.CMSG_SPACE(_timespec.size)
"""Space that recvmsg(2) needs for one stamp."""
_CLOCK_STEP_NS = 1_000_000
_CONFIRMATIONS = 3
_OLDEST_NS = 60_000_000_000

ArrivalStamp = int | Sequence[tuple[int, int, bytes]]
"""Arrival time: monotonic ns where it was stamped when read, else recvmsg's ancillary data."""


def enable(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives on a socket.

    Returns False where it cannot.
    """
    if _TIMESTAMPNS is None:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class StampClock:
    """Convert stamps to monotonic ns. `ahead_ns` is the monotonic clock minus the wall clock."""

    __slots__ = ("_disagreements", "ahead_ns")

    def __init__(self) -> None:
        self.ahead_ns = time.monotonic_ns() - time.time_ns()
        self._disagreements = 0

    def sync(self, now_ns: int, wall_ns: int) -> None:
        """Compare the clocks. Call it before converting, with `wall_ns` read right after `now_ns`."""
        ahead_ns = now_ns - wall_ns
        if ahead_ns > self.ahead_ns:
            self.ahead_ns = ahead_ns
        if ahead_ns > self.ahead_ns - _CLOCK_STEP_NS:
            self._disagreements = 0
        else:
            self._on_disagreement(ahead_ns)

    def arrival(self, stamp: ArrivalStamp, now_ns: int) -> int:
        """Convert the arrival time of something that was read before `now_ns`."""
        if isinstance(stamp, int):
            return stamp
        if not stamp:
            return now_ns
        seconds, ns = _timespec.unpack(stamp[0][2])
        at_ns: int = seconds * NS_PER_S + ns + self.ahead_ns
        # Anything else was stamped before somebody set the clock.
        return at_ns if now_ns - _OLDEST_NS < at_ns < now_ns else now_ns

    def _on_disagreement(self, ahead_ns: int) -> None:
        """Count a smaller difference. It is an interruption between both reads, or a clock set forward."""
        self._disagreements += 1
        if self._disagreements >= _CONFIRMATIONS:  # an interruption does not come each time
            self.ahead_ns, self._disagreements = ahead_ns, 0
