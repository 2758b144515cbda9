"""Count the requests that lost workers left unsent (missed rows).

Workers beside their master write their own rows: one is lost if its rows have no end. Workers on other machines are
watched by the master (master.py).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import ControlRow, MissedRow, PhaseRow, as_typed, is_pipelined
from loadchaos.core.ledger.writer import Writer
from loadchaos.load.worker.recorder import missed_row
from loadchaos.load.worker.worker_plan import WorkerPlan

Share = Counter[tuple[str, int]]
"""Requests by traffic and phase."""


class PhaseBegins(RowFold):
    """Begin of each phase and time of the stop. They bound what can have been missed."""

    def __init__(self) -> None:
        self.phases: dict[int, int] = {}
        self.stopped_ns: int | None = None

    def feed(self, rows: bytes) -> None:
        """Read a piece of a worker's rows; parses only the few that name a phase."""
        if b'"row":"phase"' not in rows:
            return
        for line in rows.split(b"\n"):
            if b'"row":"phase"' in line:
                self.fold(orjson.loads(line))

    def on_phase(self, row: PhaseRow) -> None:
        if row["what"] == "begin":
            self.phases.setdefault(row["phase"], row["at_ns"])

    def feed_commands(self, commands: Iterable[ControlRow]) -> None:
        for row in commands:
            if row["what"] == "stop" and self.stopped_ns is None:
                self.stopped_ns = row["at_ns"]


def control_rows(tail: Tail) -> list[ControlRow]:
    return [row for row in map(as_typed, tail.rows()) if row["row"] == "control"]


def unsent_share(plan: Path, worker: int, rows: Path, begins: PhaseBegins) -> Share:
    """Count the requests that a worker should have sent and did not. A closed phase with a duration has no such number."""
    unsent: Share = Counter()
    read = WorkerPlan.read(plan, worker, os.environ)
    for phase, steps in read.phases():
        if phase.for_s is not None and not phase.open:
            continue
        begin_ns = begins.phases.get(phase.index)
        if begins.stopped_ns is not None and (begin_ns is None or not phase.open):
            continue  # how far the others would have got is unknown
        for step in steps:
            due_ns = (begin_ns or 0) + int(((step.due_s or 0.0) - phase.behind_s) * 1e9)
            if begins.stopped_ns is not None and due_ns > begins.stopped_ns:
                break
            unsent[step.traffic, phase.index] += 1
    for row in Tail(rows).rows():
        if row["row"] == "begin" and not is_pipelined(row):
            unsent[str(row["traffic"]), int(row["phase"])] -= 1
        elif row["row"] == "missed":
            unsent[str(row["traffic"]), int(row["phase"])] -= int(row["count"])
    return +unsent


def missed_rows(plan: Path, worker: int, rows: Path, begins: PhaseBegins) -> Iterator[MissedRow]:
    for (traffic, phase), count in sorted(unsent_share(plan, worker, rows, begins).items()):
        yield missed_row(traffic, phase, "worker_lost", count, time.monotonic_ns())


def record_lost_workers(plan: Path, workers: int) -> None:
    """Write missed rows for local workers that were lost. May raise LedgerError."""
    folder = RunFolder(plan.parent)
    begins = PhaseBegins()
    begins.feed_commands(control_rows(Tail(folder.control)))
    lost = [worker for worker in range(workers) if not _ended(folder.requests(worker))]
    if not lost:
        return
    for path in folder.request_files():
        for row in Tail(path).rows():
            begins.fold(row)
    writer = Writer(folder.path / "requests-master.jsonl", "locust-master")
    for worker in lost:
        for missed in missed_rows(plan, worker, folder.requests(worker), begins):
            writer.write(missed)
    writer.close()


def _ended(rows: Path) -> bool:
    return any(row.get("row") == "load" and row.get("what") == "end" for row in Tail(rows).rows())
