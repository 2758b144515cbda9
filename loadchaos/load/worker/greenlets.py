"""Typed wrappers of the gevent functions that the load uses."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

import gevent
import gevent.event
import gevent.monkey

from loadchaos.core.units import NS_PER_S

_gevent = cast("Any", gevent)
_MONOTONIC, _ABSOLUTE = 1, 1
_NONBLOCK_CLOEXEC = 0o2004000
_sleep = cast("Callable[[float], None]", cast("Any", gevent.monkey).get_original("time", "sleep"))


class Flag(Protocol):
    """A gevent Event: like threading.Event, at a tenth of its cost."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Greenlet(Protocol):
    """A greenlet as `spawn` returns it."""

    def kill(self, block: bool = True) -> None: ...

    def join(self) -> None: ...


def flag() -> Flag:
    return cast("Flag", _gevent.event.Event())


def spawn(work: Callable[..., None], *args: object) -> Greenlet:
    """Run `work(*args)` in a new greenlet. It begins when the caller next waits."""
    return cast("Greenlet", _gevent.spawn(work, *args))


def sleep(seconds: float) -> None:
    """Let other greenlets run for this many seconds. With 0 each ready one runs once."""
    _gevent.sleep(seconds)


def current() -> Any:
    return _gevent.getcurrent()


def hub() -> Any:
    """The greenlet that polls. `hub().switch()` waits until somebody switches back."""
    return _gevent.get_hub()


def loop() -> Any:
    """The hub's libev loop. Its watchers call back inside the hub and may not wait."""
    return _gevent.get_hub().loop


def ready() -> bool:
    """True if other greenlets are ready to run before the hub polls again."""
    return bool(_gevent.get_hub().loop._callbacks)


def resume(greenlet: Any) -> None:
    """Wake a greenlet that waits in the hub. It runs when the caller next waits."""
    _gevent.get_hub().loop.run_callback(greenlet.switch)


def on_signal(number: int, work: Callable[[], None]) -> None:
    """Handle a signal: run `work()` in a new greenlet."""
    _gevent.signal_handler(number, work)


def block_process(seconds: float) -> None:
    """Sleep with the whole process, hub included."""
    _sleep(seconds)


class Timer:
    """Timer of one greenlet at a time; `due_ns` is set while it waits. Without Linux's timerfd, gevent's timers are used."""

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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._io = -1, None
