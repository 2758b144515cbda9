"""The master's side of a load on many machines: gives places and plan, gathers rows, passes orders on, notes who is lost.

It writes each worker's rows into that worker's file of the run folder, and what it sees of the workers themselves into
`requests-master.jsonl`. Losing a worker, or one that comes late or is slow, is an observation: the load goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import MissedRow, WorkerEvent
from loadchaos.core.ledger.writer import Writer
from loadchaos.load.cluster import messages
from loadchaos.load.cluster.reassign import Begins, lost_share
from loadchaos.load.cluster.worker_link import SILENT_S
from loadchaos.load.worker import bundle
from loadchaos.load.worker.greenlets import sleep, spawn

AWAY_S = 5.0
"""A worker not heard of for so long is told as lost; it may come back."""
SLOW_NS = 2_000_000_000
WAIT_TOLD_S = 5.0
_BRING = "start `loadchaos worker --master-host` there, or give them longer with --wait-workers"
_LOOK_S = 0.1
_SAY_AGAIN_S = 30.0
_MOST_REFUSALS = 100


class LocustMaster(Protocol):
    """What we need of Locust's MasterRunner."""

    def send_message(self, msg_type: str, data: dict[str, Any] | None = None, client_id: str | None = None) -> None:
        """Send to one worker."""

    def register_message(self, msg_type: str, listener: Callable[..., None], concurrent: bool = False) -> None:
        """Have `listener(environment, msg)` called for messages of a kind."""


@dataclass
class WorkerSlot:
    """One share of the plan, and who drives it. `state`: free, given (told where to connect), here, away, done."""

    number: int
    state: str = "free"
    token: str = ""
    host: str = ""
    client: str = ""
    heard: float = 0.0
    part: int = 0
    have: int = 0
    slow: bool = False
    why: str = ""
    fd: int = field(default=-1, repr=False)


class Coordinator:
    """All places of one run. `begun` is set when the load may begin; `over` is called once when nobody drives any more."""

    def __init__(
        self,
        runner: LocustMaster,
        folder: Path,
        places: int,
        wait_s: float,
        begin: Callable[[int], None],
        over: Callable[[LedgerError | None], None],
    ) -> None:
        self._runner, self._folder = runner, RunFolder(folder)
        self._path_entries = [WorkerSlot(n) for n in range(places)]
        self._luggage = bundle.pack(folder)
        self._writer = Writer(folder / "requests-master.jsonl", "locust-master")
        self._control, self._orders = Tail(self._folder.control), list[dict[str, Any]]()
        self._begins = Begins()
        self._begin, self._over, self._wait_s = begin, over, wait_s
        self._since, self._told = time.monotonic(), 0.0
        self._began = self._ended = False
        self._strangers: dict[str, float] = {}
        for kind, listener in (
            (messages.HELLO, self._on_hello),
            (messages.ROWS, self._on_rows),
            (messages.PING, self._on_ping),
            (messages.DONE, self._on_done),
        ):
            runner.register_message(kind, listener)
        spawn(self._watch)

    # --- who comes ----------------------------------------------------------------------------------------------------

    def _on_hello(self, msg: Any, **_: Any) -> None:
        data = msg.data if isinstance(msg.data, dict) else {}
        token, host = str(data.get("token")), str(data.get("host"))
        if (why := messages.mismatch(data.get("versions") or {})) is not None:
            self._stranger(token, "refused", host, why)
            self._send(msg.node_id, messages.REFUSED, {"why": why})
            return
        place = next((p for p in self._path_entries if p.token == token), None)
        if place is None and not self._began:
            place = next((p for p in self._path_entries if p.state == "free"), None)
        if place is None:
            why = "the load began without it" if self._began else f"all {len(self._path_entries)} places are taken"
            self._stranger(token, "late" if self._began else "spare", host, why)
            self._send(msg.node_id, messages.WAIT, {"why": why})
            return
        place.token, place.host, place.heard = token, host, time.monotonic()
        place.state = "given" if place.state == "free" else place.state
        self._send(msg.node_id, messages.WELCOME, {"place": place.number, **self._luggage})

    def _stranger(self, token: str, what: WorkerEvent, host: str, why: str) -> None:
        """Told once, and not again and again while it asks."""
        if token not in self._strangers and len(self._strangers) < _MOST_REFUSALS:
            self._note(what, None, host, why)
        self._strangers[token] = time.monotonic()

    def _place(self, msg: Any) -> WorkerSlot | None:
        """Whose message this is; None for one that has no place (any more)."""
        number = msg.data.get("place")
        if not isinstance(number, int) or not 0 <= number < len(self._path_entries):
            return None
        place = self._path_entries[number]
        if not place.token or msg.data.get("token") != place.token:
            return None
        place.heard, place.client = time.monotonic(), msg.node_id
        if place.state == "given":
            place.state = "here"
            self._note("joined", place)
        elif place.state == "away":
            place.state = "here"
            self._note("back", place)
        return place

    # --- what they send -----------------------------------------------------------------------------------------------

    def _on_ping(self, msg: Any, **_: Any) -> None:
        now_ns = time.monotonic_ns()
        if (place := self._place(msg)) is not None:
            self._send(place.client, messages.PONG, {"mine_ns": msg.data["mine_ns"], "theirs_ns": now_ns})
            self._order(place, int(msg.data.get("orders") or 0))

    def _on_rows(self, msg: Any, **_: Any) -> None:
        place = self._place(msg)
        if place is None or self._ended:
            return
        part, offset = int(msg.data.get("part") or 0), int(msg.data["offset"])
        if part == place.part + 1 and offset == 0:
            self._next_part(place)
        if (part, offset) == (place.part, place.have):
            try:
                rows = messages.unpacked(msg.data["rows"])
            except ValueError as e:
                self._note("refused", place, why=str(e))
                return
            try:
                self._append(place, rows)
            except LedgerError as e:
                self._end(e)
                return
            self._begins.feed(rows)
            self._slow(place, time.monotonic_ns() - int(msg.data["sent_ns"]))
        ahead = (part, offset) > (place.part, place.have)
        self._send(place.client, messages.ACK, {"part": place.part, "have": place.have, "again": ahead})

    def _next_part(self, place: WorkerSlot) -> None:
        """A worker sends no next part before all of the last one is acknowledged."""
        self._close(place)
        place.part, place.have = place.part + 1, 0

    def _close(self, place: WorkerSlot) -> None:
        if place.fd >= 0:
            with suppress(OSError):
                os.fsync(place.fd)
            os.close(place.fd)
        place.fd = -1

    def _append(self, place: WorkerSlot, rows: bytes) -> None:
        path = parquet.part_of(self._folder.requests(place.number), place.part)
        try:
            if place.fd < 0:
                place.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            written = os.write(place.fd, rows)
        except OSError as e:
            raise LedgerError(f"{path}: rows could not be written: {e.strerror}; {next_step(e)}") from e
        place.have += written
        if written < len(rows):
            raise LedgerError(f"{path}: only {written} of {len(rows)} bytes of rows could be written: free space there")

    def _slow(self, place: WorkerSlot, took_ns: int) -> None:
        slow = took_ns > SLOW_NS
        if slow and not place.slow:
            self._note("slow", place, why=f"its rows take {took_ns / 1e9:.1f} s to arrive")
        place.slow = slow

    def _on_done(self, msg: Any, **_: Any) -> None:
        if (place := self._place(msg)) is not None and place.state != "done":
            place.state, place.why = "done", str(msg.data.get("why"))
            self._note("left" if place.why in ("done", "stopped") else "failed", place, why=place.why)

    # --- watching over them -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._ended:
                self._pass_orders()
                self._look_after()
                if self._began:
                    if all(self._is_over(p) for p in self._path_entries):
                        self._end(None)
                else:
                    self._await_workers()
                sleep(_LOOK_S)
        except LedgerError as e:
            self._end(e)

    def _look_after(self) -> None:
        now = time.monotonic()
        for place in self._path_entries:
            silent = now - place.heard
            if place.state == "here" and silent > AWAY_S:
                place.state = "away"
                self._note("lost", place, why=f"not heard of for {silent:.0f} s")
            if not self._began and place.state in ("given", "away") and silent > SILENT_S:
                self._path_entries[place.number] = WorkerSlot(
                    place.number
                )  # it never drove anything: another may have its place

    def _is_over(self, place: WorkerSlot) -> bool:
        gone = place.state in ("free", "given") or time.monotonic() - place.heard > SILENT_S
        return place.state == "done" or (place.state != "here" and gone)

    def _await_workers(self) -> None:
        here = sum(p.state == "here" for p in self._path_entries)
        waited = time.monotonic() - self._since
        if here == len(self._path_entries) or (waited > self._wait_s and here):
            self._began = True
            for place in self._path_entries:
                if place.state != "here":
                    self._note("absent", place, why=f"it did not come within {self._wait_s:g} s: {_BRING}")
            self._note("begin", None, why=f"{here} of {len(self._path_entries)} workers are here")
            self._begin(here)
        elif waited > self._wait_s:
            self._end(LedgerError(f"no worker came within {self._wait_s:g} s: {_BRING}"))
        elif waited - self._told > WAIT_TOLD_S:
            self._told = waited
            self._note("awaited", None, why=f"{here} of {len(self._path_entries)} workers are here")

    def _pass_orders(self) -> None:
        known = len(self._orders)
        self._orders += [dict(r) for r in self._control.rows() if r.get("row") == "control"]
        self._begins.obey(self._orders[known:])
        if len(self._orders) > known:
            for place in self._path_entries:
                if place.state == "here":
                    self._order(place, known)

    def _order(self, place: WorkerSlot, known: int) -> None:
        if known < len(self._orders):
            self._send(place.client, messages.CONTROL, {"first": known, "rows": self._orders[known:]})

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Locust quits, as it does by itself when its last worker has left: who has not said that he is done has failed."""
        if self._began and not self._ended:
            for place in self._path_entries:
                if place.state in ("here", "away"):
                    self._note("failed", place, why="it left before its last rows came")
        self._end(None)

    def _end(self, failure: LedgerError | None) -> None:
        """Count what the lost ones have left undone, and let the load end."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._began and failure is None:
                for place in self._path_entries:
                    if place.state != "done" or place.why == "failed":
                        for row in self._undone(place):
                            self._writer.write(row)
        except LedgerError as e:
            failure = e
        for place in self._path_entries:
            self._close(place)
        self._over(failure)

    def _undone(self, place: WorkerSlot) -> Iterator[MissedRow]:
        path = self._folder.requests(place.number)
        counts = lost_share(self._folder.plan, place.number, path, self._begins)
        for (traffic, phase), count in sorted(counts.items()):
            yield {
                "row": "missed",
                "at_ns": time.monotonic_ns(),
                "traffic": traffic,
                "phase": phase,
                "why": "worker_lost",
                "count": count,
            }

    # --- small --------------------------------------------------------------------------------------------------------

    def _note(self, what: WorkerEvent, place: WorkerSlot | None, host: str | None = None, why: str = "") -> None:
        self._writer.write(
            {
                "row": "worker",
                "at_ns": time.monotonic_ns(),
                "what": what,
                "worker": None if place is None else place.number,
                "host": host if place is None else place.host,
                "why": why,
            }
        )

    def _send(self, client: str, kind: str, data: dict[str, Any]) -> None:
        self._runner.send_message(kind, data, client_id=client)
