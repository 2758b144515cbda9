"""The few things of gevent that the load is made of, with types, which gevent does not ship."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import gevent
import gevent.event
import gevent.monkey

_gevent = cast("Any", gevent)
_sleep = cast("Callable[[float], None]", cast("Any", gevent.monkey).get_original("time", "sleep"))


class Flag(Protocol):
    """A gevent Event: like threading.Event, at a tenth of its price."""

    def set(self) -> None:
        """Wake whoever waits."""

    def clear(self) -> None:
        """Make the next one wait."""

    def is_set(self) -> bool:
        """Whether nobody has to wait."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or `timeout` seconds have passed; whether it is set."""


class Greenlet(Protocol):
    """What spawn gives back."""

    def kill(self, block: bool = True) -> None:
        """End it."""


def flag() -> Flag:
    """A new flag, not set."""
    return cast("Flag", _gevent.event.Event())


def spawn(work: Callable[..., None], *args: object) -> Greenlet:
    """Run `work(*args)` beside; it begins when the caller next waits."""
    return cast("Greenlet", _gevent.spawn(work, *args))


def sleep(seconds: float) -> None:
    """Let others run for so long; 0 lets each have its turn."""
    _gevent.sleep(seconds)


def current() -> Any:
    """The greenlet that runs now."""
    return _gevent.getcurrent()


def hub() -> Any:
    """The greenlet that polls; `hub().switch()` waits until somebody switches back."""
    return _gevent.get_hub()


def loop() -> Any:
    """The hub's libev loop: its watchers call back inside the hub, where nothing may wait."""
    return _gevent.get_hub().loop


def ready() -> bool:
    """Whether greenlets wait for their turn only: they have it before the hub polls again."""
    return bool(_gevent.get_hub().loop._callbacks)


def resume(greenlet: Any) -> None:
    """Have a greenlet that waits in the hub go on when the caller next waits."""
    _gevent.get_hub().loop.run_callback(greenlet.switch)


def on_signal(number: int, work: Callable[[], None]) -> None:
    """Run `work()` in a greenlet of its own when the signal comes, in place of what it would do."""
    _gevent.signal_handler(number, work)


def stand_still(seconds: float) -> None:
    """Let the whole process sleep, hub and all."""
    _sleep(seconds)
