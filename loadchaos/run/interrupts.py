"""Signals that end this process: the first one in order, the second one at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from loadchaos.analysis.state.limits import BALANCER_NS
from loadchaos.core.errors import LoadchaosError, StoppedBySignalError
from loadchaos.core.lifetime import ending_signals
from loadchaos.core.limits import LAST_LINES_S, SCRAPE_EVERY_S, SIGKILL_GRACE_INTERRUPTED_S, SIGKILL_GRACE_S

_POLL_S = 0.1
T = TypeVar("T")
SignalHandler = Callable[[signal.Signals], None]


@dataclass(frozen=True)
class ShutdownTimeouts:
    """Limits in seconds for each phase of a run's end. `drain_s`: for requests in flight; None: as long as the load
    allows them. `locust_s`: from the stop command to SIGTERM, `locust_term_s` and `server_s`: from there to SIGKILL.
    `settle_s`: for a dying server to log and exit. `restart_s`: until it is clear whether it restarted.
    """

    drain_s: float | None
    locust_s: float
    locust_term_s: float
    settle_s: float
    restart_s: float
    server_s: float
    follower_s: float


_RESTART_S = BALANCER_NS / 1e9 + 2 * SCRAPE_EVERY_S  # and until the next scrape has been folded
_NORMAL = ShutdownTimeouts(
    drain_s=None,
    locust_s=8.0,
    locust_term_s=3.0,
    settle_s=LAST_LINES_S,
    restart_s=_RESTART_S,
    server_s=SIGKILL_GRACE_S,
    follower_s=10.0,
)
_INTERRUPTED = ShutdownTimeouts(  # under 10 s with the verdict and the report
    drain_s=1.0,
    locust_s=2.5,
    locust_term_s=1.0,
    settle_s=1.0,
    restart_s=1.0,
    server_s=SIGKILL_GRACE_INTERRUPTED_S,
    follower_s=2.0,
)
_IMMEDIATE = ShutdownTimeouts(
    drain_s=0.0, locust_s=0.0, locust_term_s=0.0, settle_s=0.0, restart_s=0.0, server_s=0.0, follower_s=0.0
)
SHUTDOWN_TIMEOUTS = (_NORMAL, _INTERRUPTED, _IMMEDIATE)
"""Indexed by the number of interrupts: 0, 1, 2 or more."""


class Interrupts:
    """The signals that this process has received; true after the first one. SIGHUP counts as SIGTERM. The part of the
    program that is at work takes the signals with `handled_by`.
    """

    def __init__(self) -> None:
        self._signals: list[signal.Signals] = []
        self._handlers: list[SignalHandler] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; a signal that no part of it handles cancels it and raises StoppedBySignalError."""

        async def main() -> T:
            task = asyncio.current_task()

            def cancel(_: signal.Signals) -> None:
                assert task is not None
                task.cancel()

            with self.installed(), self.handled_by(cancel):
                try:
                    return await work
                except asyncio.CancelledError:
                    self.raise_if_any()
                    raise

        return asyncio.run(main())

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Receive SIGINT, SIGTERM and SIGHUP until the block ends: in an event loop between two callbacks."""
        numbers = ending_signals()
        before = {number: signal.getsignal(number) for number in numbers}
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            for number in numbers:
                signal.signal(number, lambda n, _: self.receive(signal.Signals(n)))
        else:
            for number in numbers:
                loop.add_signal_handler(number, functools.partial(self.receive, number))
        try:
            yield
        finally:
            for number, handler in before.items():
                with contextlib.suppress(RuntimeError):
                    asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, handler)

    @contextlib.contextmanager
    def handled_by(self, handler: SignalHandler) -> Iterator[None]:
        self._handlers.append(handler)
        try:
            yield
        finally:
            self._handlers.remove(handler)

    def receive(self, number: signal.Signals) -> None:
        counted = signal.SIGTERM if number == signal.SIGHUP else number
        self._signals.append(counted)
        if self._handlers:
            self._handlers[-1](counted)

    def forgive(self) -> None:
        """Forget the signals so far: they were the regular end of what was at work."""
        self._signals.clear()

    def raise_if_any(self) -> None:
        if self._signals:
            raise StoppedBySignalError(self.exit_code) from None

    def __bool__(self) -> bool:
        return bool(self._signals)

    @property
    def count(self) -> int:
        return len(self._signals)

    @property
    def first(self) -> signal.Signals:
        return self._signals[0]

    @property
    def exit_code(self) -> int:
        """128 plus the number of the first signal, as shells have it."""
        return 128 + self._signals[0]

    @property
    def timeouts(self) -> ShutdownTimeouts:
        return SHUTDOWN_TIMEOUTS[min(len(self._signals), 2)]

    async def wait(self, step: Awaitable[None], poll: Callable[[], None], stopped: Callable[[], bool]) -> bool:
        """Await a step, polling every 0.1 s. False where a signal came or `stopped()` was true first: it is cancelled."""
        work = asyncio.ensure_future(step)
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_POLL_S)
                poll()
                if self._signals or stopped():
                    return False
            await work
            return True
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, LoadchaosError):
                await work
