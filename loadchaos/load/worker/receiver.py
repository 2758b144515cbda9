"""Read all connections of a worker from gevent's hub, before other work.

A greenlet that reads is woken for each packet, reads, finds nothing more and waits again. Here the hub's own callback
reads. Arrivals are delivered to their exchanges when nothing more can be read, in slices, so that no read waits for
parsing. An exchange's greenlet wakes up when its exchange ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loadchaos.core.ledger.rows import StreamReader
from loadchaos.core.units import NS_PER_S
from loadchaos.load.wire.native import new_poller
from loadchaos.load.wire.sockets import (
    OLDEST_STAMP_NS,
    RECEIVE_BYTES,
    ArrivalStamp,
    Connection,
    Feed,
    Origin,
    StampClock,
    unread_bytes,
)
from loadchaos.load.worker.greenlets import Timer, block_process, current, hub, loop, ready

if TYPE_CHECKING:
    from loadchaos.load.wire._native import Poller

_SLICE_NS = 500_000
"""Time for which arrivals are delivered before new ones are read and stamped."""
_MAX_WAITING = 4096
"""With more arrivals than this waiting, at least half are delivered at once, or they would pile up."""
_AFTER_READS = -2  # libev's lowest priority
_MAX_BATCH_NS = 2_000_000
_MAX_BATCH_UNSTAMPED_NS = 200_000
"""Longest time between polls when tokens are dense, as a wake-up costs more than reading. The kernel stamps each packet.
Without kernel stamps (TLS, other systems) a packet's time is that of reading, so polls may be only this far apart."""
_MIN_BATCH_NS = 500_000
_POLLS_PER_GAP = 4
"""Polls per shortest gap of any stream in the last second: packets read together share one stamp. Gaps shorter than
`_MIN_BATCH_NS` are not resolved."""
_DENSE_PER_S = 2_000
_WINDOW_NS = 50_000_000
_WINDOWS = 20
_NO_GAP_NS = 1 << 62
_TIMER_LEAD_NS = 1_000_000
"""Waiting stops this long before a timer is due, so that arrivals are delivered by then."""


class Receiver:
    """Reader of all connections in one hub. The worker's slots call `collect`. It waits for more arrivals, for
    `batch_ns` at most, and until shortly before the `timer` is due. It does not wait while greenlets are ready or a
    connection to the `target` is blocked in connecting or sending. `on_slice` is called with True before each slice of
    deliveries and with False after it.
    """

    def __init__(
        self, on_slice: Callable[[bool], None], timer: Timer | None = None, target: Origin | None = None
    ) -> None:
        self._on_slice, self._timer, self._target = on_slice, timer, target
        self._arrived: deque[tuple[ArrivalStamp, _Watcher, bytes | OSError]] = deque()
        self._clock = StampClock()
        self._yielded: list[Any] = []
        self._switch = hub().switch
        self._check = loop().check(ref=False, priority=_AFTER_READS)
        self._check.start(self._deliver)
        self._poll_at_once = loop().idle(ref=False)  # while it is started, the loop polls without waiting
        self._polled_ns = self._window_ns = time.monotonic_ns()
        self._window_count = 0
        self._shortest_gap_ns = _NO_GAP_NS
        self._recent_gaps: deque[int] = deque(maxlen=_WINDOWS)  # the shortest gap of each window
        self._max_batch_ns = _MAX_BATCH_NS
        self.batch_ns = 0
        self._poller = new_poller(RECEIVE_BYTES, _MIN_BATCH_NS)
        self._io: Any = None
        if self._poller is not None:
            self._io = loop().io(self._poller.fileno(), 1)
            self._io.start(self._read_lanes)

    @property
    def reader(self) -> StreamReader:
        return "python" if self._poller is None else "native"

    def close(self) -> None:
        self._check.stop()
        self._poll_at_once.stop()
        if self._poller is not None:
            self._io.stop()
            self._poller.close()

    def collect(self, connection: Connection, feed: Feed) -> bool:
        """Feed what arrives on a connection until the answer ends (a `Collect`)."""
        watcher = connection.watcher
        if not isinstance(watcher, _Watcher):
            poller = self._poller if connection.stamped else None
            watcher = connection.watcher = _Watcher(connection, self._arrived, poller)
            if not connection.stamped:
                self._max_batch_ns = _MAX_BATCH_UNSTAMPED_NS
        watcher.feed, watcher.greenlet, watcher.end, watcher.arrived_ns = feed, current(), None, 0
        if watcher.lane is not None:
            watcher.lane.set_reading(True)
        if not watcher.deliver_early():
            watcher.start()
            self._switch()
        if isinstance(watcher.end, Exception):
            raise watcher.end
        return watcher.end is not None

    def yield_to_reads(self) -> None:
        """Let pending reads run first. `sleep(0)` only lets other greenlets run, for up to 5 ms."""
        self._yielded.append(current())
        self._poll_at_once.start(_noop)
        self._switch()

    def _read_lanes(self) -> None:
        """Read all connections that have something. What was not counted is delivered like any arrival."""
        clock, poller = self._clock, self._poller
        assert poller is not None
        now_ns = time.monotonic_ns()
        clock.sync(now_ns, time.time_ns())
        arrivals, counted, shortest_gap_ns = poller.read(clock.ahead_ns, OLDEST_STAMP_NS)
        self._window_count += counted
        self._shortest_gap_ns = min(self._shortest_gap_ns, shortest_gap_ns)
        for at_ns, watcher, data in arrivals:
            if data is None:
                watcher.on_unexpected()
                continue
            self._arrived.append((at_ns, watcher, data))
            if not isinstance(data, bytes) or not data:
                watcher.stop()  # an end stays readable

    def _deliver(self) -> None:
        arrived = self._arrived
        if arrived:
            now_ns = time.monotonic_ns()
            clock = self._clock
            clock.sync(now_ns, time.time_ns())
            self._on_slice(True)
            until_ns = now_ns + _SLICE_NS
            left = len(arrived) // 2 if len(arrived) > _MAX_WAITING else len(arrived)
            while arrived:
                if time.monotonic_ns() > until_ns:
                    if len(arrived) <= left:
                        break
                    self._on_slice(False)
                    self._on_slice(True)
                    until_ns = time.monotonic_ns() + _SLICE_NS
                stamp, watcher, data = arrived.popleft()
                at_ns = clock.arrival(stamp, now_ns)
                if watcher.deliver(at_ns, data):
                    self._window_count += 1
                    if _MIN_BATCH_NS < at_ns - watcher.arrived_ns < self._shortest_gap_ns:
                        self._shortest_gap_ns = at_ns - watcher.arrived_ns
                    watcher.arrived_ns = at_ns
            self._on_slice(False)
        yielded, self._yielded = self._yielded, []
        for greenlet in yielded:
            greenlet.switch()
        if arrived or self._yielded:
            self._poll_at_once.start(_noop)
        else:
            self._poll_at_once.stop()
            if self._window_count or self.batch_ns:
                self._wait_for_more()

    def _wait_for_more(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._window_ns > _WINDOW_NS:
            self._tune_batch(now_ns)
        until_ns = self._polled_ns + self.batch_ns
        if ready() or (self._target is not None and self._target.blocked):
            until_ns = 0
        elif self._timer is not None and self._timer.due_ns is not None:
            until_ns = min(until_ns, self._timer.due_ns - _TIMER_LEAD_NS)
        left_ns = until_ns - now_ns
        if left_ns > 0:
            block_process(left_ns / 1e9)
            now_ns += left_ns
        self._polled_ns = now_ns

    def _tune_batch(self, now_ns: int) -> None:
        """Choose `batch_ns` from token density and the shortest gap of a stream. The bytes that end an exchange do not
        count: a wait would delay the user's next request.
        """
        dense = self._window_count * NS_PER_S > _DENSE_PER_S * (now_ns - self._window_ns)
        self._recent_gaps.append(self._shortest_gap_ns)
        self._window_ns, self._window_count, self._shortest_gap_ns = now_ns, 0, _NO_GAP_NS
        shortest_ns = min(self._recent_gaps)
        batch_ns = 0 if shortest_ns == _NO_GAP_NS else shortest_ns // _POLLS_PER_GAP
        self.batch_ns = min(self._max_batch_ns, max(_MIN_BATCH_NS, batch_ns)) if dense else 0


class _Watcher:
    """Reads one connection, from its first `collect` to its end. While idle it detects a close."""

    __slots__ = (
        "_arrived", "_descriptor", "_early", "_io", "_poller", "_read", "_started", "_tls", "_unexpected", "arrived_ns",
        "end", "feed", "greenlet", "lane",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        arrived: deque[tuple[ArrivalStamp, _Watcher, bytes | OSError]],
        poller: Poller[_Watcher] | None,
    ) -> None:
        self.feed: Feed | None = None
        self.greenlet: Any = None
        self.end: bytes | Exception | None = None
        self.arrived_ns = 0
        self._arrived = arrived
        self._early: list[tuple[int, bytes | OSError]] = []
        self._read = connection.read_now
        self._tls = connection.tls
        self._descriptor = connection.fileno()
        self._poller = poller
        self.lane = connection.lane = None if poller is None else poller.lane(self._descriptor)
        # Good until `stop`, which comes before closing.
        self._io: Any = loop().io(self._descriptor, 1) if poller is None else None
        self._started = False
        self._unexpected = False

    @property
    def closed_while_idle(self) -> bool | None:
        """True if the peer closed or sent data while idle. Returns None if not watched, and if data came inside TLS that
        may be no answer (session tickets).
        """
        if not (self._started or self._unexpected) or (self._tls and self._unexpected):
            return None
        return self._unexpected

    def start(self) -> None:
        self._unexpected = False
        if self._started:
            return
        self._started = True
        if self._poller is None or self.lane is None:
            self._io.start(self._readable)
        else:
            self._poller.start(self.lane, self)

    def stop(self) -> None:
        if not self._started:
            return
        self._started = False
        if self._poller is None or self.lane is None:
            self._io.stop()
        else:
            self._poller.stop(self.lane)

    def on_unexpected(self) -> None:
        """Note that something came while no exchange waits. It is left unread."""
        self._unexpected = True
        self.stop()

    def _readable(self) -> None:
        if self.feed is None:
            self.on_unexpected()
            return
        data: bytes | OSError
        try:
            data, stamp, _, _ = self._read()
            self._arrived.append((stamp, self, data))
            # TLS reads one record from the kernel and gives all of it. With no more there, another read would only fail.
            while self._tls and data and unread_bytes(self._descriptor):
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
        """Feed an arrival. Wakes the greenlet and returns False when the answer ends."""
        if self.lane is not None:
            self.lane.fed()
        if self.feed is None:
            # It follows the answer. Where requests were pipelined, the next exchange reads it.
            self._unexpected = True
            self._early.append((at_ns, data))
            return False
        if not self._ends(at_ns, data, self.feed):
            return True
        self.greenlet.switch()
        return False

    def deliver_early(self) -> bool:
        """Feed arrivals from before `collect`. Returns True if they end the answer."""
        while self._early:
            assert self.feed is not None, "an exchange collects"
            if self._ends(*self._early.pop(0), self.feed):
                return True
        return False

    def _ends(self, at_ns: int, data: bytes | OSError, feed: Feed) -> bool:
        try:
            if data and isinstance(data, bytes):
                if feed(at_ns, data):
                    return False
            else:
                self.end = data
        except Exception as e:  # noqa: BLE001 - a bug of ours must fail the greenlet, not the hub
            self.end = e
        self.feed = None
        if self.lane is not None:
            self.lane.set_reading(False)
        return True


def _noop() -> None:
    pass
