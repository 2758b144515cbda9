"""The worker's side of a load on many machines: its rows to the master, the master's orders and clock to it.

The worker writes its rows to a file of its own, as every worker does, and this ships what has been written since, part by
part. So a link that breaks delays rows and loses none, and after a death the file lies where the worker ran; a part that the
master has whole becomes Parquet there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import orjson

from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import ClockRow
from loadchaos.load.cluster import messages
from loadchaos.load.worker.clock_sync import MasterClock
from loadchaos.load.worker.greenlets import flag, sleep, spawn

SHIP_S = 0.5
"""How long a row waits at most before it goes; with the way there, what a worker's death can cost."""
PING_S = 5.0
SILENT_S = 15.0
"""A worker that hears nothing of its master for so long ends its load: nobody would watch what it does."""

_AGAIN_S = 3.0
_WINDOW_BYTES = 4 * messages.PIECE_BYTES
_FIRST_PINGS = 8
_CLOCK_ROW_S = 60.0


class LocustWorker(Protocol):
    """What we need of Locust's WorkerRunner."""

    def send_message(self, msg_type: str, data: dict[str, Any] | None = None) -> None:
        """Send to the master."""

    def register_message(self, msg_type: str, listener: Callable[..., None], concurrent: bool = False) -> None:
        """Have `listener(environment, msg)` called for messages of a kind."""


class Link:
    """One worker's link to its master, from before the load until every row has arrived.

    `clock` is the master's; `lost` is called once when the master has been silent for SILENT_S.
    """

    def __init__(self, runner: LocustWorker, folder: Path, place: int, token: str, lost: Callable[[], None]) -> None:
        self.clock = MasterClock()
        self.known = flag()
        self._runner, self._place, self._token, self._lost = runner, place, token, lost
        self._path = RunFolder(folder).requests(place)
        self._control = RunFolder(folder).control
        self._part = self._sent = self._acked = 0
        self._sent_at = self._heard_at = time.monotonic()
        self._noted_at = 0.0
        self._orders = 0
        self._acks = flag()
        self._note: Callable[[ClockRow], None] | None = None
        self._over = False
        for kind, listener in (
            (messages.ACK, self._on_ack),
            (messages.PONG, self._on_pong),
            (messages.CONTROL, self._on_control),
        ):
            runner.register_message(kind, listener)
        spawn(self._pinging)
        spawn(self._shipping)

    def noting(self, note: Callable[[ClockRow], None]) -> None:
        """Where rows about the clock go from now on."""
        self._note = note
        self._note_clock()

    def finish(self, why: str, limit_s: float) -> bool:
        """The load is over: wait until the master has every row, then tell it; False when it did not get them."""
        deadline = time.monotonic() + limit_s
        while not self._arrived():
            if time.monotonic() > deadline:
                return False
            self._acks.clear()
            self._ship()
            self._acks.wait(SHIP_S)
        self._over = True
        self._send(messages.DONE, {"why": why, "size": self._size()})
        return True

    # --- rows to the master -----------------------------------------------------------------------------------------------

    def _shipping(self) -> None:
        while not self._over:
            self._ship()
            sleep(SHIP_S)
            if time.monotonic() - self._heard_at > SILENT_S:
                self._lost()
                return

    def _ship(self) -> None:
        self._turn_to_next_part()
        if self._sent > self._acked and time.monotonic() - self._sent_at > _AGAIN_S:
            self._sent = self._acked  # lost on the way, or the master took long: it ignores what it has
        while self._sent - self._acked < _WINDOW_BYTES and (piece := self._piece(self._sent)):
            lag_ns = self.clock.now_ns()
            rows = {"part": self._part, "offset": self._sent, "rows": messages.packed(piece), "sent_ns": lag_ns}
            self._send(messages.ROWS, rows)
            self._sent += len(piece)
            self._sent_at = time.monotonic()

    def _piece(self, offset: int) -> bytes:
        """Whole rows from there on, as many as go into one message."""
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
        """Whether the load writes the next part by now."""
        return parquet.part_of(self._path, self._part + 1).exists()

    def _arrived(self) -> bool:
        """Whether the master has every row."""
        return not self._is_finished() and self._has_all()

    def _has_all(self) -> bool:
        """Whether it has those of this part: a row that a full disk has torn is none."""
        return self._acked >= self._size() or not self._piece(self._acked)

    def _turn_to_next_part(self) -> None:
        if self._is_finished() and self._has_all():
            spawn(_pack, self._file)
            self._part, self._sent, self._acked = self._part + 1, 0, 0

    def _on_ack(self, msg: Any, **_: Any) -> None:
        self._heard_at = time.monotonic()
        if int(msg.data.get("part") or 0) != self._part:
            return
        have = int(msg.data["have"])
        if msg.data.get("again"):  # a piece before it is missing there
            self._sent = have
        self._acked = max(self._acked, have)
        self._sent = max(self._sent, self._acked)
        self._acks.set()
        if not self._arrived():
            self._ship()

    # --- clock and orders -------------------------------------------------------------------------------------------------

    def _pinging(self) -> None:
        while not self._over:
            self._send(messages.PING, {"mine_ns": time.monotonic_ns(), "orders": self._orders})
            sleep(0.05 if self.clock.samples < _FIRST_PINGS else PING_S)

    def _on_pong(self, msg: Any, **_: Any) -> None:
        self._heard_at = time.monotonic()
        self.clock.sample(int(msg.data["mine_ns"]), int(msg.data["theirs_ns"]), time.monotonic_ns())
        if self.clock.samples >= _FIRST_PINGS:
            self.known.set()
        if time.monotonic() - self._noted_at > _CLOCK_ROW_S:
            self._note_clock()

    def _note_clock(self) -> None:
        if self._note is not None:
            self._noted_at = time.monotonic()
            at_ns, offset_ns = time.monotonic_ns(), self.clock.offset_ns
            self._note({"row": "clock", "at_ns": at_ns, "offset_ns": offset_ns, "rtt_ns": self.clock.rtt_ns})

    def _on_control(self, msg: Any, **_: Any) -> None:
        """What the run tells: it goes into the file that the load reads, as on the master's own machine."""
        self._heard_at = time.monotonic()
        if int(msg.data["first"]) > self._orders:  # one before it is missing: the next ping asks for it
            return
        new = msg.data["rows"][self._orders - int(msg.data["first"]) :]
        self._orders += len(new)
        fd = os.open(self._control, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, b"".join(orjson.dumps(row) + b"\n" for row in new))
        finally:
            os.close(fd)

    def heard(self) -> None:
        """The master gave a sign of its own (Locust's heartbeat)."""
        self._heard_at = time.monotonic()

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        self._runner.send_message(kind, {**data, "place": self._place, "token": self._token})


def _pack(part: Path) -> None:
    """Nobody reads it any more: beside, in a process of its own, it becomes Parquet."""
    with suppress(OSError):  # no process to be had: the JSONL stays
        subprocess.run(
            [sys.executable, "-m", "loadchaos.core.ledger.parquet", str(part)], stdin=subprocess.DEVNULL, check=False
        )
