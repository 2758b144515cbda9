"""Write requests-<w>.jsonl: the rows of one worker's requests and its heartbeats; track what is in flight."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from heapq import nlargest
from pathlib import Path
from typing import Any

from loadchaos.core.body_hash import body_hash
from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger import batch
from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.ledger.rows import AnyRow, BeginOrEnd, BeginRow, EndRow, MissedRow, MissReason
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.limits import SILENT_STREAMS
from loadchaos.core.model import Step
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.worker.clock_sync import MasterClock
from loadchaos.load.worker.greenlets import current, hub

_ABORTED = ("aborted", "finish_abort")
_COMPACT_SILENCE_NS = 2_000_000_000
"""In compact mode, silence of a request after which its start is written: no end may follow."""


class RequestRecorder:
    """Writer of one worker's rows. Any method may raise LedgerError. The load must then stop, as nothing it does is
    recorded. In compact mode, when disk space is low, successful requests get one row together each second
    (core/ledger/batch.py). Any other request keeps its rows, its begin written with its end or after two seconds of
    silence.
    """

    def __init__(self, path: Path, worker: int, clock: MasterClock | None = None) -> None:
        # A worker on another machine writes moments in its master's clock, so that its rows need no more work there.
        self._clock = clock
        extra = None if clock is None else lambda: {"host": socket.gethostname(), "mono_ns": clock.now_ns()}
        self._writer = Writer(path, f"locust-{worker}", extra, HOUR_S)
        self.progress = Progress()
        self.in_flight: dict[str, Exchange] = {}
        self._in_flight_with_images: dict[str, Exchange] = {}  # the part of `in_flight` that carries images
        self._aborted = 0
        self.begun = 0
        self.ended = 0
        self.backed_off = 0
        self.lag_ns = 0
        self._missed: dict[tuple[str, int, MissReason], int] = {}
        self._compact = False
        self._unwritten_begins: dict[str, BeginRow] = {}  # begin rows not written yet
        self._successes: list[batch.Pair] = []
        self._waiting: list[Any] = []  # greenlets whose begin rows are held
        self._cpu_s = time.process_time()
        self._heartbeat_ns = time.monotonic_ns()

    def begin(self, exchange: Exchange) -> None:
        """Record a request's begin before its first byte. Waits while rows are held."""
        request_id = exchange.request.id
        row = begin_row(exchange)
        if self._compact:
            self._unwritten_begins[request_id] = row
        else:
            self.write(row)
            if self._writer.holding:
                self._waiting.append(current())
                hub().switch()
                self.note_lag(time.monotonic_ns() - exchange.begun_ns)
        self.in_flight[request_id] = exchange
        if exchange.request.images:
            self._in_flight_with_images[request_id] = exchange
        self.begun += 1

    def end(self, exchange: Exchange, row: EndRow) -> None:
        request_id = exchange.request.id
        self.in_flight.pop(request_id, None)
        self._in_flight_with_images.pop(request_id, None)
        self.ended += 1
        self._aborted += row["outcome"] in _ABORTED
        begin = self._unwritten_begins.pop(request_id, None)
        if begin is not None and batch.can_fold(begin, row):
            self._successes.append((begin, row))
            return
        if begin is not None:
            self.write(begin)
        self.write(row)

    def set_compact(self, compact: bool) -> None:
        if self._compact and not compact:
            self._write_begins(list(self._unwritten_begins))
        self._compact = compact

    def _write_begins(self, ids: Iterable[str]) -> None:
        for request_id in ids:
            if (begin := self._unwritten_begins.pop(request_id, None)) is not None:
                self.write(begin)

    def hold(self) -> None:
        """Hold rows until `release` writes them together. Only the hub may hold them."""
        self._writer.holding = True

    def release(self) -> None:
        """Write the held rows; requests whose begins were among them go out."""
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
        """Count a step that was due and is not sent; `fold` writes the counts."""
        key = (step.traffic, step.phase, why)
        self._missed[key] = self._missed.get(key, 0) + 1

    def fold(self) -> None:
        """Write counts of missed steps and, in compact mode, of successes."""
        successes, self._successes = self._successes, []
        for row in batch.fold_requests(successes):
            self.write(row)
        missed, self._missed = self._missed, {}
        for (traffic, phase, why), count in missed.items():
            self.write(missed_row(traffic, phase, why, count, time.monotonic_ns()))

    def phase(self, phase: int, round_: int, what: BeginOrEnd) -> None:
        self.write({"row": "phase", "at_ns": time.monotonic_ns(), "phase": phase, "round": round_, "what": what})

    def note_lag(self, lag_ns: int) -> None:
        """Note the dispatcher's delay; a heartbeat reports the longest one."""
        self.lag_ns = max(self.lag_ns, lag_ns)

    def heartbeat(self, users: int) -> None:
        """Write activity since the last heartbeat; a hung server shows here first."""
        now = time.monotonic_ns()
        cpu_s = time.process_time()
        silent = [i for i, exchange in self.in_flight.items() if exchange.silence_ns(now) > _COMPACT_SILENCE_NS]
        self._write_begins(i for i in silent if i in self._unwritten_begins)
        silences = [exchange.silence_ns(now) for exchange in self.in_flight.values()]
        longest = nlargest(SILENT_STREAMS, filter(None, (e.token_silence_ns(now) for e in self.in_flight.values())))
        self.write(
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
                "backed_off": self.backed_off,
                "images_in_prefill": sum(
                    exchange.first_body_ns is None for exchange in self._in_flight_with_images.values()
                ),
                "waiting_tokens": sum(
                    exchange.planned_tokens for exchange in self.in_flight.values() if not exchange.tokens
                ),
                "stream_silences_ns": longest,
                "cpu_share": round((cpu_s - self._cpu_s) / max((now - self._heartbeat_ns) / 1e9, 1e-9), 3),
            }
        )
        self.progress.tokens = self.progress.bytes_in = self.lag_ns = 0
        self._cpu_s, self._heartbeat_ns = cpu_s, now

    def write(self, row: AnyRow) -> None:
        self._writer.write(row if self._clock is None else self._clock.to_master_time(row))

    def close(self) -> None:
        self._write_begins(list(self._unwritten_begins))
        self._writer.sync()
        self._writer.close()


def begin_row(exchange: Exchange) -> BeginRow:
    """Build the begin row; `len` and `hash` prove that a body rebuilt later is the one that was sent."""
    step, request = exchange.step, exchange.request
    row: BeginRow = {
        "row": "begin",
        "id": request.id,
        "step": step.index,
        "phase": step.phase,
        "round": step.round,
        "traffic": step.traffic,
        "at_ns": exchange.begun_ns,
        "due_ns": exchange.due_ns,
        "conn": exchange.connection_number,
        "reused": exchange.reused,
        "len": len(request.body),
        "hash": body_hash(request.body),
        "tokens": request.tokens,
        "images": request.images,
        "image_tokens": request.image_tokens,
        "max_tokens": request.max_tokens,
        "behaviour": step.behaviour,
        "expect": request.expect,
        "edge": request.edge,
        "seed": step.seed,
        "fitted": request.fitted,
        "image_names": request.image_names,
        "videos": request.videos,
    }
    if request.image_file:
        row["image_file"] = request.image_file
    if request.audio:
        row["audio"] = request.audio
    if request.tries:
        row["tries"] = request.tries
    return row


def missed_row(traffic: str, phase: int, why: MissReason, count: int, at_ns: int) -> MissedRow:
    """Build one row for `count` requests that were due and never sent."""
    return {"row": "missed", "at_ns": at_ns, "traffic": traffic, "phase": phase, "why": why, "count": count}
