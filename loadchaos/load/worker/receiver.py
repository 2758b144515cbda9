"""Reads all connections of a worker from gevent's hub: reading comes first, everything else behind it.

A greenlet that reads is woken for each packet, reads, finds nothing more and waits again. Here the hub's own callback
reads; what arrived is handed to the calls when nothing more is to be read, in slices, so that no reading waits for
somebody's parsing. The greenlet of a call wakes up when its exchange is over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from loadchaos.load.wire import timestamps
from loadchaos.load.wire.sockets import Connection, Feed, Origin
from loadchaos.load.worker.greenlets import current, hub, loop, ready, stand_still
from loadchaos.load.worker.timer import Alarm

_SLICE_NS = 500_000
"""So long arrivals are handed over before the next ones are read and stamped."""
_MOST_WAITING = 4096
"""Where more waits to be handed over, at least half of it is: under too much load it would only pile up."""
_BEHIND_READING = -2  # libev's lowest priority
_GATHER_NS = 2_000_000
_GATHER_UNSTAMPED_NS = 200_000
"""Where tokens come thick, polls are that far apart at most, as a wake-up costs more than reading: the kernel says when each
came. Where it does not (inside TLS, or not on Linux), the time is that of reading: no further than it may be late."""
_FINEST_NS = 500_000
_POLLS_PER_GAP = 4
"""Of the shortest gap there was in any stream for a second: what is read together has one stamp. What is nearer than
`_FINEST_NS` is not stamp apart."""
_THICK_PER_S = 2_000
_WINDOW_NS = 50_000_000
_WINDOWS = 20
_NO_GAP_NS = 1 << 62
_LEAD_NS = 1_000_000
"""So long before a moment that somebody waits for nobody stands still: what has gathered is handed over by then."""


class Arrivals:
    """One a hub. `collect` is for the worker's slots; `around` brackets each slice (True before, False behind it).

    It stands still until shortly before the `alarm`, where there is one, for `gather_ns` at most, and not at all while
    greenlets are ready to go on or somebody is held up in connecting or sending (to the `target`).
    """

    def __init__(
        self, around: Callable[[bool], None], alarm: Alarm | None = None, target: Origin | None = None
    ) -> None:
        self._around, self._alarm, self._target = around, alarm, target
        self._arrived: deque[tuple[timestamps.ArrivalStamp, _Watcher, bytes | OSError]] = deque()
        self._clock = timestamps.StampClock()
        self._turns: list[Any] = []
        self._switch = hub().switch
        self._check = loop().check(ref=False, priority=_BEHIND_READING)
        self._check.start(self._hand_over)
        self._not_now = loop().idle(ref=False)  # while it is started, polling does not wait
        self._polled_ns = self._window_ns = time.monotonic_ns()
        self._in_window = 0
        self._least_ns = _NO_GAP_NS
        self._recently: deque[int] = deque(maxlen=_WINDOWS)  # the shortest gap of each window
        self._most_ns = _GATHER_NS
        self.gather_ns = 0

    def close(self) -> None:
        """Read no more."""
        self._check.stop()
        self._not_now.stop()

    def collect(self, connection: Connection, feed: Feed) -> bool:
        """See wire.sockets.Collect."""
        watcher = connection.watcher
        if not isinstance(watcher, _Watcher):
            watcher = connection.watcher = _Watcher(connection, self._arrived)
            if not connection.stamped:
                self._most_ns = _GATHER_UNSTAMPED_NS
        watcher.feed, watcher.greenlet, watcher.end, watcher.arrived_ns = feed, current(), None, 0
        if not watcher.deliver_kept():
            watcher.start()
            self._switch()
        if isinstance(watcher.end, Exception):
            raise watcher.end
        return watcher.end is not None

    def breathe(self) -> None:
        """Let in what has arrived meanwhile. (`sleep(0)` only lets other greenlets run, for up to 5 ms.)"""
        self._turns.append(current())
        self._not_now.start(_nothing)
        self._switch()

    def _hand_over(self) -> None:
        arrived = self._arrived
        if arrived:
            now_ns = time.monotonic_ns()
            clock = self._clock
            clock.sync(now_ns, time.time_ns())
            self._around(True)
            until_ns = now_ns + _SLICE_NS
            left = len(arrived) // 2 if len(arrived) > _MOST_WAITING else len(arrived)
            while arrived:
                if time.monotonic_ns() > until_ns:
                    if len(arrived) <= left:
                        break
                    self._around(False)
                    self._around(True)
                    until_ns = time.monotonic_ns() + _SLICE_NS
                stamp, watcher, data = arrived.popleft()
                at_ns = clock.arrival(stamp, now_ns)
                if watcher.deliver(at_ns, data):
                    self._in_window += 1
                    if _FINEST_NS < at_ns - watcher.arrived_ns < self._least_ns:
                        self._least_ns = at_ns - watcher.arrived_ns
                    watcher.arrived_ns = at_ns
            self._around(False)
        turns, self._turns = self._turns, []
        for greenlet in turns:
            greenlet.switch()
        if arrived or self._turns:
            self._not_now.start(_nothing)
        else:
            self._not_now.stop()
            if self._in_window or self.gather_ns:
                self._gather()

    def _gather(self) -> None:
        """Let more arrive before the next poll, where it is worth it."""
        now_ns = time.monotonic_ns()
        if now_ns - self._window_ns > _WINDOW_NS:
            self._learn(now_ns)
        until_ns = self._polled_ns + self.gather_ns
        if ready() or (self._target is not None and self._target.blocked):
            until_ns = 0
        elif self._alarm is not None and self._alarm.at_ns is not None:
            until_ns = min(until_ns, self._alarm.at_ns - _LEAD_NS)
        left_ns = until_ns - now_ns
        if left_ns > 0:
            stand_still(left_ns / 1e9)
            now_ns += left_ns
        self._polled_ns = now_ns

    def _learn(self, now_ns: int) -> None:
        """How thick tokens come, and how near to each other on one connection.

        What ends an exchange does not count: the user whose it was would begin his next one later.
        """
        thick = self._in_window * 1_000_000_000 > _THICK_PER_S * (now_ns - self._window_ns)
        self._recently.append(self._least_ns)
        self._window_ns, self._in_window, self._least_ns = now_ns, 0, _NO_GAP_NS
        shortest_ns = min(self._recently)
        apart_ns = 0 if shortest_ns == _NO_GAP_NS else shortest_ns // _POLLS_PER_GAP
        self.gather_ns = min(self._most_ns, max(_FINEST_NS, apart_ns)) if thick else 0


class _Watcher:
    """Reads one connection, from its first `collect` to its end; between two calls it sees the peer go."""

    __slots__ = (
        "_arrived",
        "_io",
        "_kept",
        "_read",
        "_started",
        "_tls",
        "_unexpected",
        "arrived_ns",
        "end",
        "feed",
        "greenlet",
    )

    def __init__(
        self, connection: Connection, arrived: deque[tuple[timestamps.ArrivalStamp, _Watcher, bytes | OSError]]
    ) -> None:
        self.feed: Feed | None = None
        self.greenlet: Any = None
        self.end: bytes | Exception | None = None
        self.arrived_ns = 0
        self._arrived = arrived
        self._kept: list[tuple[int, bytes | OSError]] = []
        self._read = connection.read_now
        self._tls = connection.tls
        self._io = loop().io(connection.fileno(), 1)  # good until `stop`, which comes before closing
        self._started = False
        self._unexpected = False

    @property
    def closed_while_idle(self) -> bool | None:
        """See wire.sockets.Watch. Inside TLS something may come that is no answer (session tickets): not looked at."""
        if self._tls or not (self._started or self._unexpected):
            return None
        return self._unexpected

    def start(self) -> None:
        self._unexpected = False
        if not self._started:
            self._started = True
            self._io.start(self._readable)

    def stop(self) -> None:
        if self._started:
            self._started = False
            self._io.stop()

    def _readable(self) -> None:
        if self.feed is None:
            self._unexpected = True
            self.stop()
            return
        data: bytes | OSError
        try:
            data, stamp, _, _ = self._read()
            self._arrived.append((stamp, self, data))
            while self._tls and data:  # what TLS has decrypted ahead makes no descriptor readable
                data, stamp, _, _ = self._read()
                self._arrived.append((stamp, self, data))
        except BlockingIOError:
            return
        except OSError as e:
            data = e
            self._arrived.append((time.monotonic_ns(), self, e))
        if not isinstance(data, bytes) or not data:
            self.stop()  # an end stays readable

    def deliver(self, at_ns: int, data: bytes | OSError) -> bool:
        """Hand over what arrived, and wake the greenlet when it is the end or no more is wanted (False)."""
        if self.feed is None:
            # Behind what its call wanted. Where that was pipelined, another call will want it.
            self._unexpected = True
            self._kept.append((at_ns, data))
            return False
        if not self._is_over(at_ns, data, self.feed):
            return True
        self.greenlet.switch()
        return False

    def deliver_kept(self) -> bool:
        """Hand over what came before anybody asked; whether that is all that is wanted."""
        while self._kept:
            assert self.feed is not None, "a call collects"
            if self._is_over(*self._kept.pop(0), self.feed):
                return True
        return False

    def _is_over(self, at_ns: int, data: bytes | OSError, feed: Feed) -> bool:
        try:
            if data and isinstance(data, bytes):
                if feed(at_ns, data):
                    return False
            else:
                self.end = data
        except Exception as e:  # noqa: BLE001 - a mistake of ours belongs to the greenlet, not to the hub
            self.end = e
        self.feed = None
        return True


def _nothing() -> None:
    pass
