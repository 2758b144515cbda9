"""Signals that end a run: the first one in order, the second one at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loadchaos.analysis.state.limits import BALANCER_NS
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.limits import LAST_LINES_S

_POLL_S = 0.1


@dataclass(frozen=True)
class ShutdownTimeouts:
    """Limits in seconds for each phase of a run's end.

    Args:
        drain_s: for requests in flight; None: as long as the load itself allows them.
        locust_s: from the stop command until Locust is ended by a signal.
        locust_term_s: from SIGTERM to SIGKILL for Locust.
        settle_s: for a dying server to write its last log lines and exit.
        restart_s: until it is clear whether the server restarted.
        server_s: from SIGTERM to SIGKILL for a server that the run started.
        follower_s: for the follower to read the ledger to its end.
    """

    drain_s: float | None
    locust_s: float
    locust_term_s: float
    settle_s: float
    restart_s: float
    server_s: float
    follower_s: float


_RESTART_S = BALANCER_NS / 1e9 + 2.0  # and until the next scrape has been folded
_NORMAL = ShutdownTimeouts(None, 8.0, 3.0, LAST_LINES_S, _RESTART_S, 3.0, 10.0)
_INTERRUPTED = ShutdownTimeouts(
    1.0, 2.5, 1.0, 1.0, 1.0, 2.0, 2.0
)  # together under 10 s, with the verdict and the report
_IMMEDIATE = ShutdownTimeouts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
SHUTDOWN_TIMEOUTS = (_NORMAL, _INTERRUPTED, _IMMEDIATE)
"""Indexed by the number of interrupts: 0, 1, 2 or more."""


class Interrupts:
    """The signals a run has received; true after the first one."""

    def __init__(self, record: EventRecorder, print_line: Callable[[str], None]) -> None:
        self._record, self._print = record, print_line
        self._signals: list[signal.Signals] = []

    def install(self) -> None:
        """Handle SIGINT, SIGTERM and SIGHUP in the running event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.record, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means: continue without a terminal
            loop.add_signal_handler(signal.SIGHUP, self.record, signal.SIGTERM)

    def record(self, number: signal.Signals) -> None:
        """Count a signal, write its row and print what happens next."""
        self._signals.append(number)
        self._record.run("interrupted", signal=number.name)
        if len(self._signals) == 1:
            self._print("interrupted: stopping the run cleanly (press Ctrl-C again to stop at once)")
        else:
            self._print("interrupted again: stopping the run at once")

    def __bool__(self) -> bool:
        return bool(self._signals)

    @property
    def count(self) -> int:
        """Number of signals received so far."""
        return len(self._signals)

    @property
    def name(self) -> str:
        """Name of the first signal, such as SIGINT."""
        return self._signals[0].name

    @property
    def exit_code(self) -> int:
        """128 plus the number of the first signal, as shells have it."""
        return 128 + self._signals[0]

    @property
    def timeouts(self) -> ShutdownTimeouts:
        """Shutdown timeouts after this many signals."""
        return SHUTDOWN_TIMEOUTS[min(len(self._signals), 2)]

    async def wait(self, step: Awaitable[None], poll: Callable[[], None], stopped: Callable[[], bool]) -> bool:
        """Await a step unless the user ends the run meanwhile.

        Args:
            step: what to await; it is cancelled when the user ends the run.
            poll: called every 0.1 s.
            stopped: True when the user has ended the run by other means than a signal.

        Returns:
            True when the step completed.
        """
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
