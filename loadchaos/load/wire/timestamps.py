"""When a packet came, by the kernel's own stamp: a process that reads late need not be wrong about it.

Linux puts the arrival beside the bytes where a socket asks for it (SO_TIMESTAMPNS; for TCP since 4.13: commit 98aaa913b4ed),
as a time of the wall clock. That clock and the monotonic one are slewed alike, so they differ by one number until somebody
sets the wall clock.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence

_TIMESTAMPNS = 35 if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
"""asm-generic/socket.h; Python's socket module has no name for it. Its value is a struct timespec."""
_timespec = struct.Struct("qq")
ROOM_BYTES = socket.CMSG_SPACE(_timespec.size)
"""What recvmsg(2) needs for it."""
_SET_NS = 1_000_000
_SURE = 3
_OLDEST_NS = 60_000_000_000

Told = int | Sequence[tuple[int, int, bytes]]
"""When something came: monotonic ns where it was stamped as it was read, else recvmsg's ancillary data."""


def ask(sock: socket.socket) -> bool:
    """Have the kernel stamp what arrives on this socket; whether it can."""
    if _TIMESTAMPNS is None:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class StampClock:
    """Turns stamps into monotonic ns. `ahead_ns`: by how much the monotonic clock is ahead of the wall clock."""

    __slots__ = ("_otherwise", "ahead_ns")

    def __init__(self) -> None:
        self.ahead_ns = time.monotonic_ns() - time.time_ns()
        self._otherwise = 0

    def look(self, now_ns: int, wall_ns: int) -> None:
        """Compare the clocks, before stamps of what has just been read are asked for; `wall_ns` was read just behind."""
        ahead_ns = now_ns - wall_ns
        if ahead_ns > self.ahead_ns:
            self.ahead_ns = ahead_ns
        if ahead_ns > self.ahead_ns - _SET_NS:
            self._otherwise = 0
        else:
            self._disagrees(ahead_ns)

    def arrival(self, told: Told, now_ns: int) -> int:
        """When something came that was read before `now_ns`."""
        if isinstance(told, int):
            return told
        if not told:
            return now_ns
        seconds, ns = _timespec.unpack(told[0][2])
        at_ns: int = seconds * 1_000_000_000 + ns + self.ahead_ns
        # Anything else was stamped before somebody set the clock.
        return at_ns if now_ns - _OLDEST_NS < at_ns < now_ns else now_ns

    def _disagrees(self, ahead_ns: int) -> None:
        """We were interrupted between the two looks, which makes it too little; or the wall clock was set forward."""
        self._otherwise += 1
        if self._otherwise >= _SURE:  # an interruption does not come each time
            self.ahead_ns, self._otherwise = ahead_ns, 0
