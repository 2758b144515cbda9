"""Master of a load on many machines: worker slots, plan, rows, commands.

It writes each worker's rows into that worker's file of the run folder, and events of the workers themselves into
`requests-master.jsonl`. A lost, late or slow worker is an observation: the load continues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import ControlRow, WorkerEvent
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load.cluster import messages
from loadchaos.load.cluster.lost_workers import PhaseBegins, control_rows, missed_rows
from loadchaos.load.cluster.worker_link import MASTER_SILENCE_S
from loadchaos.load.worker import bundle
from loadchaos.load.worker.greenlets import sleep, spawn

LOST_AFTER_S = 5.0
"""A worker without a message for this long is reported as lost; it may come back."""
SLOW_NS = 2_000_000_000
WAIT_NOTE_S = 5.0
_BRING = "start `loadchaos worker --master-host` there, or allow more time with --wait-workers"
_POLL_S = 0.1
_REPEAT_S = 30.0
_MAX_REFUSALS = 100


@dataclass
class WorkerSlot:
    """One share of the plan and its worker. `state` is free, given (told where to connect), here, away or done."""

    number: int
    state: str = "free"
    token: str = ""
    host: str = ""
    client: str = ""
    heard_at_s: float = 0.0
    part: int = 0
    received: int = 0
    slow: bool = False
    why: str = ""
    fd: int = field(default=-1, repr=False)


class Coordinator:
    """Coordinates all workers of one run."""

    def __init__(
        self,
        runner: messages.LocustRunner,
        folder: Path,
        slots: int,
        wait_s: float,
        on_begin: Callable[[int], None],
        on_end: Callable[[LedgerError | None], None],
    ) -> None:
        """Wait `wait_s` for `slots` workers; then the load begins with those that are connected.

        `on_begin` is called with their number when the load may begin, `on_end` once when it has ended everywhere, with the
        error that ended it or None.
        """
        self._runner, self._folder = runner, RunFolder(folder)
        self._slots = [WorkerSlot(n) for n in range(slots)]
        self._bundle = bundle.pack(folder)
        self._writer = Writer(folder / "requests-master.jsonl", "locust-master")
        self._control, self._commands = Tail(self._folder.control), list[ControlRow]()
        self._phase_begins = PhaseBegins()
        self._on_begin, self._on_end, self._wait_s = on_begin, on_end, wait_s
        self._since_s, self._report_change = time.monotonic(), 0.0
        self._began = self._ended = False
        self._unplaced: dict[str, float] = {}
        for kind, listener in (
            (messages.Hello.KIND, self._on_hello),
            (messages.RowPiece.KIND, self._on_rows),
            (messages.Ping.KIND, self._on_ping),
            (messages.Done.KIND, self._on_done),
        ):
            runner.register_message(kind, listener)
        spawn(self._run)

    # --- who comes ----------------------------------------------------------------------------------------------------

    def _on_hello(self, msg: Any, **_: Any) -> None:
        hello = from_json(messages.Hello, msg.data)
        token, host = hello.token, hello.host
        if (why := messages.mismatch(hello.versions)) is not None:
            self._note_unplaced(token, "refused", host, why)
            self._send(msg.node_id, messages.Refused(why=why))
            return
        slot = next((p for p in self._slots if p.token == token), None)
        if slot is None and not self._began:
            slot = next((p for p in self._slots if p.state == "free"), None)
        if slot is None:
            why = "the load began without it" if self._began else f"all {len(self._slots)} worker slots are taken"
            self._note_unplaced(token, "late" if self._began else "spare", host, why)
            self._send(msg.node_id, messages.Wait(why=why))
            return
        slot.token, slot.host, slot.heard_at_s = token, host, time.monotonic()
        slot.state = "given" if slot.state == "free" else slot.state
        self._send(msg.node_id, messages.Welcome(slot=slot.number, bundle=self._bundle))

    def _note_unplaced(self, token: str, what: WorkerEvent, host: str, why: str) -> None:
        """Record once that a worker got no slot, however often it asks."""
        if token not in self._unplaced and len(self._unplaced) < _MAX_REFUSALS:
            self._note(what, None, host, why)
        self._unplaced[token] = time.monotonic()

    def _slot_of(self, msg: Any) -> WorkerSlot | None:
        """Return the slot of a message's sender. Returns None if it has none any more."""
        sender = from_json(messages.Sender, msg.data)
        slot = self._slots[sender.slot] if 0 <= sender.slot < len(self._slots) else None
        if slot is None or not slot.token or sender.token != slot.token:
            return None
        slot.heard_at_s, slot.client = time.monotonic(), msg.node_id
        if slot.state == "given":
            slot.state = "here"
            self._note("joined", slot)
        elif slot.state == "away":
            slot.state = "here"
            self._note("back", slot)
        return slot

    # --- what they send -----------------------------------------------------------------------------------------------

    def _on_ping(self, msg: Any, **_: Any) -> None:
        now_ns = time.monotonic_ns()
        if (slot := self._slot_of(msg)) is not None:
            ping = from_json(messages.Ping, msg.data)
            self._send(slot.client, messages.Pong(mine_ns=ping.mine_ns, theirs_ns=now_ns))
            self._send_commands(slot, ping.commands)

    def _on_rows(self, msg: Any, **_: Any) -> None:
        slot = self._slot_of(msg)
        if slot is None or self._ended:
            return
        piece = from_json(messages.RowPiece, msg.data)
        part, offset = piece.part, piece.offset
        if part == slot.part + 1 and offset == 0:  # sent only after all of the last file was acknowledged
            self._close(slot)
            slot.part, slot.received = part, 0
        if (part, offset) == (slot.part, slot.received):
            try:
                rows = messages.decompress(piece.rows)
                self._append(slot, rows)
            except ValueError as e:
                self._note("refused", slot, why=str(e))
                return
            except LedgerError as e:
                self._end(e)
                return
            self._phase_begins.feed(rows)
            late_ns = time.monotonic_ns() - piece.sent_ns
            if late_ns > SLOW_NS and not slot.slow:
                self._note("slow", slot, why=f"its rows arrive {late_ns / 1e9:.1f} s late")
            slot.slow = late_ns > SLOW_NS
        ahead = (part, offset) > (slot.part, slot.received)
        self._send(slot.client, messages.Ack(part=slot.part, received=slot.received, resend=ahead))

    def _close(self, slot: WorkerSlot) -> None:
        if slot.fd >= 0:
            with suppress(OSError):
                os.fsync(slot.fd)
            os.close(slot.fd)
        slot.fd = -1

    def _append(self, slot: WorkerSlot, rows: bytes) -> None:
        path = parquet.part_of(self._folder.requests(slot.number), slot.part)
        try:
            if slot.fd < 0:
                slot.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            written = os.write(slot.fd, rows)
        except OSError as e:
            raise LedgerError(f"{path}: rows could not be written: {e.strerror}; {next_step(e)}") from e
        slot.received += written
        if written < len(rows):
            raise LedgerError(f"{path}: only {written} of {len(rows)} bytes of rows could be written: free space there")

    def _on_done(self, msg: Any, **_: Any) -> None:
        if (slot := self._slot_of(msg)) is not None and slot.state != "done":
            slot.state, slot.why = "done", from_json(messages.Done, msg.data).why
            self._note("left" if slot.why in ("done", "stopped") else "failed", slot, why=slot.why)

    # --- watching over them -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                self._pass_commands()
                self._check_silence()
                if self._began:
                    if all(self._is_finished(p) for p in self._slots):
                        self._end(None)
                else:
                    self._await_workers()
                sleep(_POLL_S)
        except LedgerError as e:
            self._end(e)

    def _check_silence(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            silent = now - slot.heard_at_s
            if slot.state == "here" and silent > LOST_AFTER_S:
                slot.state = "away"
                self._note("lost", slot, why=f"no message for {silent:.0f} s")
            if not self._began and slot.state in ("given", "away") and silent > MASTER_SILENCE_S:
                # It sent nothing yet: another worker may have its slot.
                self._slots[slot.number] = WorkerSlot(slot.number)

    def _is_finished(self, slot: WorkerSlot) -> bool:
        gone = slot.state in ("free", "given") or time.monotonic() - slot.heard_at_s > MASTER_SILENCE_S
        return slot.state == "done" or (slot.state != "here" and gone)

    def _await_workers(self) -> None:
        here = sum(p.state == "here" for p in self._slots)
        waited = time.monotonic() - self._since_s
        if here == len(self._slots) or (waited > self._wait_s and here):
            self._began = True
            for slot in self._slots:
                if slot.state != "here":
                    self._note("absent", slot, why=f"it did not connect within {self._wait_s:g} s: {_BRING}")
            self._note("begin", None, why=f"{here} of {len(self._slots)} workers are connected")
            self._on_begin(here)
        elif waited > self._wait_s:
            self._end(LedgerError(f"no worker connected within {self._wait_s:g} s: {_BRING}"))
        elif waited - self._report_change > WAIT_NOTE_S:
            self._report_change = waited
            self._note("awaited", None, why=f"{here} of {len(self._slots)} workers are connected")

    def _pass_commands(self) -> None:
        known = len(self._commands)
        self._commands += control_rows(self._control)
        self._phase_begins.feed_commands(self._commands[known:])
        if len(self._commands) > known:
            for slot in self._slots:
                if slot.state == "here":
                    self._send_commands(slot, known)

    def _send_commands(self, slot: WorkerSlot, known: int) -> None:
        if known < len(self._commands):
            self._send(slot.client, messages.CommandRows(first=known, rows=tuple(self._commands[known:])))

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Handle Locust's own quit, as when its last worker has left. A worker that did not report its end has failed."""
        if self._began and not self._ended:
            for slot in self._slots:
                if slot.state in ("here", "away"):
                    self._note("failed", slot, why="it left before its last rows arrived")
        self._end(None)

    def _end(self, failure: LedgerError | None) -> None:
        """Count what lost workers left unsent, and end the load."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._began and failure is None:
                for slot in self._slots:
                    if slot.state != "done" or slot.why == "failed":
                        rows = self._folder.requests(slot.number)
                        for row in missed_rows(self._folder.plan, slot.number, rows, self._phase_begins):
                            self._writer.write(row)
        except LedgerError as e:
            failure = e
        for slot in self._slots:
            self._close(slot)
        self._on_end(failure)

    # --- small --------------------------------------------------------------------------------------------------------

    def _note(self, what: WorkerEvent, slot: WorkerSlot | None, host: str | None = None, why: str = "") -> None:
        self._writer.write(
            {
                "row": "worker",
                "at_ns": time.monotonic_ns(),
                "what": what,
                "worker": None if slot is None else slot.number,
                "host": host if slot is None else slot.host,
                "why": why,
            }
        )

    def _send(self, client: str, message: messages.Message) -> None:
        self._runner.send_message(message.KIND, to_json(message), client_id=client)
