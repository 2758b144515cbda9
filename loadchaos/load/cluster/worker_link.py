"""Worker's link to its master: rows out, commands and clock in.

The worker writes its rows to its own file, as every worker does, and this sends new rows, part by part. A broken link
delays rows and loses none, and after a death the file is where the worker ran. A part that the master has completely
becomes Parquet there.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import ClockRow
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load.cluster import messages
from loadchaos.load.worker.clock_sync import MasterClock
from loadchaos.load.worker.greenlets import flag, sleep, spawn

SHIP_S = 0.5
"""Longest time a row waits before it is sent, in seconds; a worker's death loses this much and the transfer."""
PING_S = 5.0
MASTER_SILENCE_S = 15.0
"""A worker ends its load after this long without its master, as nobody would monitor it."""

_RESEND_S = 3.0
_WINDOW_BYTES = 4 * messages.PIECE_BYTES
_FIRST_PINGS = 8
_CLOCK_ROW_S = 60.0


class WorkerLink:
    """One worker's link to its master, until every row has arrived. `clock` is the master's, `known` is set once it was
    measured. `lost` is called once when the master has been silent for MASTER_SILENCE_S.
    """

    def __init__(
        self, runner: messages.LocustRunner, folder: Path, slot: int, token: str, lost: Callable[[], None]
    ) -> None:
        self.clock = MasterClock()
        self.known = flag()
        self._runner, self._me, self._lost = runner, messages.Sender(slot=slot, token=token), lost
        self._path = RunFolder(folder).requests(slot)
        self._control = RunFolder(folder).control
        self._part = self._sent = self._acked = 0
        self._sent_at_s = self._heard_at_s = time.monotonic()
        self._clock_row_at_s = 0.0
        self._commands = 0
        self._acks = flag()
        self._note: Callable[[ClockRow], None] | None = None
        self._finished = False
        for kind, listener in (
            (messages.Ack.KIND, self._on_ack),
            (messages.Pong.KIND, self._on_pong),
            (messages.CommandRows.KIND, self._on_control),
        ):
            runner.register_message(kind, listener)
        spawn(self._ping_forever)
        spawn(self._ship_forever)

    def record_clock(self, note: Callable[[ClockRow], None]) -> None:
        """Write clock rows with `note` from now on."""
        self._note = note
        self._write_clock_row()

    def finish(self, why: str, limit_s: float) -> bool:
        """End the load: wait until the master has every row, then report it. False where `limit_s` was not enough."""
        deadline = time.monotonic() + limit_s
        while not self._all_acked():
            if time.monotonic() > deadline:
                return False
            self._acks.clear()
            self._ship()
            self._acks.wait(SHIP_S)
        self._finished = True
        self._send(messages.Done(why=why))
        return True

    # --- rows to the master -----------------------------------------------------------------------------------------------

    def _ship_forever(self) -> None:
        while not self._finished:
            self._ship()
            sleep(SHIP_S)
            if time.monotonic() - self._heard_at_s > MASTER_SILENCE_S:
                self._lost()
                return

    def _ship(self) -> None:
        self._advance_part()
        if self._sent > self._acked and time.monotonic() - self._sent_at_s > _RESEND_S:
            self._sent = self._acked  # lost in transfer, or the master is slow: it ignores rows that it has
        while self._sent - self._acked < _WINDOW_BYTES and (piece := self._piece(self._sent)):
            lag_ns = self.clock.now_ns()
            rows = messages.compress(piece)
            self._send(messages.RowPiece(part=self._part, offset=self._sent, rows=rows, sent_ns=lag_ns))
            self._sent += len(piece)
            self._sent_at_s = time.monotonic()

    def _piece(self, offset: int) -> bytes:
        try:
            with self._file.open("rb") as f:
                f.seek(offset)
                data = f.read(messages.PIECE_BYTES)
        except FileNotFoundError:
            return b""
        return data[: data.rfind(b"\n") + 1] or (data if len(data) == messages.PIECE_BYTES else b"")

    @property
    def _file(self) -> Path:
        return parquet.part_of(self._path, self._part)

    def _size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0

    def _is_finished(self) -> bool:
        return parquet.part_of(self._path, self._part + 1).exists()

    def _all_acked(self) -> bool:
        return not self._is_finished() and self._part_acked()

    def _part_acked(self) -> bool:
        """True when the master has this part, except a row torn by a full disk."""
        return self._acked >= self._size() or not self._piece(self._acked)

    def _advance_part(self) -> None:
        if self._is_finished() and self._part_acked():
            spawn(_convert_part, self._file)
            self._part, self._sent, self._acked = self._part + 1, 0, 0

    def _on_ack(self, msg: Any, **_: Any) -> None:
        self._heard_at_s = time.monotonic()
        ack = from_json(messages.Ack, msg.data)
        if ack.part != self._part:
            return
        if ack.resend:  # the master misses an earlier piece
            self._sent = ack.received
        self._acked = max(self._acked, ack.received)
        self._sent = max(self._sent, self._acked)
        self._acks.set()
        if not self._all_acked():
            self._ship()

    # --- clock and orders -------------------------------------------------------------------------------------------------

    def _ping_forever(self) -> None:
        while not self._finished:
            self._send(messages.Ping(mine_ns=time.monotonic_ns(), commands=self._commands))
            sleep(0.05 if self.clock.samples < _FIRST_PINGS else PING_S)

    def _on_pong(self, msg: Any, **_: Any) -> None:
        self._heard_at_s = time.monotonic()
        pong = from_json(messages.Pong, msg.data)
        self.clock.sample(pong.mine_ns, pong.theirs_ns, time.monotonic_ns())
        if self.clock.samples >= _FIRST_PINGS:
            self.known.set()
        if time.monotonic() - self._clock_row_at_s > _CLOCK_ROW_S:
            self._write_clock_row()

    def _write_clock_row(self) -> None:
        if self._note is not None:
            self._clock_row_at_s = time.monotonic()
            at_ns, offset_ns = time.monotonic_ns(), self.clock.offset_ns
            self._note({"row": "clock", "at_ns": at_ns, "offset_ns": offset_ns, "rtt_ns": self.clock.rtt_ns})

    def _on_control(self, msg: Any, **_: Any) -> None:
        self._heard_at_s = time.monotonic()
        told = from_json(messages.CommandRows, msg.data)
        if told.first > self._commands:  # an earlier one is missing: the next ping requests it
            return
        new = told.rows[self._commands - told.first :]
        self._commands += len(new)
        fd = os.open(self._control, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, b"".join(orjson.dumps(row) + b"\n" for row in new))
        finally:
            os.close(fd)

    def note_master_alive(self) -> None:
        """Note a sign of life from the master (Locust's heartbeat)."""
        self._heard_at_s = time.monotonic()

    def _send(self, message: messages.Message) -> None:
        self._runner.send_message(message.KIND, to_json(message) | to_json(self._me))


def _convert_part(part: Path) -> None:
    with suppress(OSError):  # no process could be started: the JSONL stays
        subprocess.run(
            [*PYTHON_MODULE, "loadchaos.core.ledger.parquet", str(part)], stdin=subprocess.DEVNULL, check=False
        )
