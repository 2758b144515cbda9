"""Typed wrappers of the gevent functions that the load uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import gevent
import gevent.event
import gevent.monkey

_gevent = cast("Any", gevent)
_sleep = cast("Callable[[float], None]", cast("Any", gevent.monkey).get_original("time", "sleep"))


class Flag(Protocol):
    """A gevent Event: like threading.Event, at a tenth of its cost."""

    def set(self) -> None:
        """Wake all waiters."""

    def clear(self) -> None:
        """Make the next caller of `wait` wait."""

    def is_set(self) -> bool:
        """True if it is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or `timeout` seconds have passed.

        Returns True if it is set.
        """


class Greenlet(Protocol):
    """A greenlet as `spawn` returns it."""

    def kill(self, block: bool = True) -> None:
        """End the greenlet."""

    def join(self) -> None:
        """Wait until it has ended."""


def flag() -> Flag:
    """Make a flag that is not set."""
    return cast("Flag", _gevent.event.Event())


def spawn(work: Callable[..., None], *args: object) -> Greenlet:
    """Run `work(*args)` in a new greenlet. It begins when the caller next waits."""
    return cast("Greenlet", _gevent.spawn(work, *args))


def sleep(seconds: float) -> None:
    """Let other greenlets run for this many seconds. With 0 each ready one runs once."""
    _gevent.sleep(seconds)


def current() -> Any:
    """The running greenlet."""
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
