"""Wait for a point in time with microsecond precision (timerfd).

gevent's own timers are up to 1 ms late, because epoll counts in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time

from loadchaos.core.units import NS_PER_S
from loadchaos.load.worker.greenlets import current, hub, loop, sleep

_MONOTONIC, _ABSOLUTE = 1, 1
_NONBLOCK_CLOEXEC = 0o2004000


class Timer:
    """Timer of one greenlet at a time; `due_ns` is set while it waits.

    Without timerfd, which Linux has, gevent's timers are used.
    """

    def __init__(self) -> None:
        self.due_ns: int | None = None
        self._fd = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
        except (OSError, AttributeError):
            pass  # not Linux
        self._io = loop().io(self._fd, 1) if self._fd >= 0 else None

    def wait_until(self, at_ns: int) -> None:
        """Return at that time of CLOCK_MONOTONIC, or at once if it has passed."""
        left_ns = at_ns - time.monotonic_ns()
        if left_ns <= 0:
            return
        self.due_ns = at_ns
        try:
            self._wait(at_ns, left_ns)
        finally:
            self.due_ns = None

    def _wait(self, at_ns: int, left_ns: int) -> None:
        if self._io is None:
            sleep(left_ns / 1e9)
            return
        when = struct.pack("@qqqq", 0, 0, at_ns // NS_PER_S, at_ns % NS_PER_S)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, when, None)
        self._io.start(current().switch)
        try:
            hub().switch()
        finally:
            self._io.stop()

    def close(self) -> None:
        """Close the timer's file descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._io = -1, None
