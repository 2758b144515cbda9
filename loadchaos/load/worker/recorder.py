"""Keeps one worker's file of rows: begins, ends, folded misses, heartbeats; and knows what is in flight."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger import batch
from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.ledger.rows import AnyRow, BeginOrEnd, BeginRow, ClockRow, DiskRow, LoadRow, MissReason
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import Reply, Step
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.worker import rows
from loadchaos.load.worker.clock_sync import MasterClock
from loadchaos.load.worker.greenlets import current, hub

_ABORTED = ("aborted", "finish_abort")
_SILENT_NS = 2_000_000_000
"""While it is brief, the begin of a request that has been silent for so long is written: it may be the last of it."""


class RequestRecorder:
    """One writer a worker. Any method may raise LedgerError; the load must then stop, as nothing it does is proved.

    While it is `brief`, because disk is low, requests that go well get one row together each second
    (loadchaos/core/ledger/batch.py); any other request has its rows as ever, its begin with its end or once it has been
    silent for two seconds.
    """

    def __init__(self, path: Path, worker: int, clock: MasterClock | None = None) -> None:
        # A worker on another machine writes moments in its master's clock, so that its rows need no more work there.
        self._clock = clock
        extra = None if clock is None else lambda: {"host": socket.gethostname(), "mono_ns": clock.now_ns()}
        self._writer = Writer(path, f"locust-{worker}", extra, HOUR_S)
        self.progress = Progress()
        self.in_flight: dict[str, Exchange] = {}
        self._pictured: dict[str, Exchange] = {}  # those of them that carry images
        self._aborted = 0
        self.begun = 0
        self.ended = 0
        self.lag_ns = 0
        self._missed: dict[tuple[str, int, MissReason], int] = {}
        self._brief = False
        self._unsaid: dict[str, BeginRow] = {}  # begin rows not written yet
        self._well: list[batch.Pair] = []
        self._waiting: list[Any] = []  # greenlets whose begin rows are held
        self._cpu_s = time.process_time()
        self._beat_ns = time.monotonic_ns()

    def begin(self, exchange: Exchange) -> None:
        """A request goes out now: its row is on its way to disk before its first byte, which waits while rows are held."""
        request_id = exchange.wire.request_id
        row = rows.begin(exchange)
        if self._brief:
            self._unsaid[request_id] = row
        else:
            self._put(row)
            if self._writer.holding:
                self._waiting.append(current())
                hub().switch()
                self.late(time.monotonic_ns() - exchange.begun_ns)
        self.in_flight[request_id] = exchange
        if exchange.wire.request.images:
            self._pictured[request_id] = exchange
        self.begun += 1

    def end(self, exchange: Exchange, reply: Reply) -> None:
        """It is over."""
        request_id = exchange.wire.request_id
        self.in_flight.pop(request_id, None)
        self._pictured.pop(request_id, None)
        self.ended += 1
        self._aborted += reply.outcome in _ABORTED
        row = rows.end(exchange, reply)
        begin = self._unsaid.pop(request_id, None)
        if begin is not None and batch.went_well(begin, row):
            self._well.append((begin, row))
            return
        if begin is not None:
            self._put(begin)
        self._put(row)

    def be_brief(self, wanted: bool) -> None:
        """From now on one row for many that go well, or again the rows of each."""
        if self._brief and not wanted:
            self._say(list(self._unsaid))
        self._brief = wanted

    def _say(self, ids: Iterable[str]) -> None:
        for request_id in ids:
            if (begin := self._unsaid.pop(request_id, None)) is not None:
                self._put(begin)

    def hold(self) -> None:
        """Rows that follow are written together by `release`; only the hub may hold them, as requests wait in it."""
        self._writer.holding = True

    def release(self) -> None:
        """Write what was held; requests whose begins were among it go out now."""
        self._writer.holding = False
        waiting, self._waiting = self._waiting, []
        try:
            self._writer.flush()
        except LedgerError as e:
            for greenlet in waiting:
                greenlet.throw(e)
            raise
        for greenlet in waiting:
            greenlet.switch()

    def miss(self, step: Step, why: MissReason) -> None:
        """It was due and is not sent; written with others by `fold`."""
        key = (step.traffic, step.phase, why)
        self._missed[key] = self._missed.get(key, 0) + 1

    def fold(self) -> None:
        """Write what was missed, and what went well, since the last time."""
        well, self._well = self._well, []
        for row in batch.folded(well):
            self._put(row)
        missed, self._missed = self._missed, {}
        for (traffic, phase, why), count in missed.items():
            self._put(rows.missed(traffic, phase, why, count, time.monotonic_ns()))

    def phase(self, phase: int, round_: int, what: BeginOrEnd) -> None:
        """A round of a phase begins or ends."""
        self._put({"row": "phase", "at_ns": time.monotonic_ns(), "phase": phase, "round": round_, "what": what})

    def write(self, row: LoadRow | ClockRow | DiskRow) -> None:
        """Write a row that is not about a request."""
        self._put(row)

    def late(self, lag_ns: int) -> None:
        """The dispatcher was this late."""
        self.lag_ns = max(self.lag_ns, lag_ns)

    def heartbeat(self, users: int) -> None:
        """What has gone on since the last one: the first sign by which a hung server is known."""
        now = time.monotonic_ns()
        cpu_s = time.process_time()
        self._say([i for i in self._unsaid if (call := self.in_flight.get(i)) and call.silence_ns(now) > _SILENT_NS])
        silences = [call.silence_ns(now) for call in self.in_flight.values()]
        self._put(
            {
                "row": "heartbeat",
                "at_ns": now,
                "in_flight": len(self.in_flight),
                "tokens": self.progress.tokens,
                "bytes": self.progress.bytes_in,
                "oldest_silence_ns": max(silences, default=0),
                "lag_ns": self.lag_ns,
                "users": users,
                "begun": self.begun,
                "ended": self.ended,
                "aborted": self._aborted,
                "images_in_prefill": sum(call.first_body_ns is None for call in self._pictured.values()),
                "cpu_share": round((cpu_s - self._cpu_s) / max((now - self._beat_ns) / 1e9, 1e-9), 3),
            }
        )
        self.progress.tokens = self.progress.bytes_in = self.lag_ns = 0
        self._cpu_s, self._beat_ns = cpu_s, now

    def _put(self, row: AnyRow) -> None:
        self._writer.write(row if self._clock is None else self._clock.translated(row))

    def close(self) -> None:
        """Sync and close the file."""
        self._say(list(self._unsaid))
        self._writer.sync()
        self._writer.close()
