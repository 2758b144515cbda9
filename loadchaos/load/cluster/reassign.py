"""What a lost worker leaves undone: its share of the plan, less what its rows tell of."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import is_pipelined
from loadchaos.load.worker.worker_plan import WorkerPlan

Share = Counter[tuple[str, int]]
"""Requests by traffic and phase."""


class Begins:
    """When each phase began, and when the load was told to stop: what was due by then is all that can be missed."""

    def __init__(self) -> None:
        self.phases: dict[int, int] = {}
        self.stopped_ns: int | None = None

    def feed(self, rows: bytes) -> None:
        """Look through a piece of a worker's rows; nearly none has a phase in it, so they are not all parsed."""
        if b'"row":"phase"' not in rows:
            return
        for line in rows.split(b"\n"):
            if b'"row":"phase"' in line:
                self.see(orjson.loads(line))

    def see(self, row: Mapping[str, Any]) -> None:
        """One row of a worker's."""
        if row.get("row") == "phase" and row.get("what") == "begin":
            self.phases.setdefault(int(row["phase"]), int(row["at_ns"]))

    def obey(self, orders: Iterable[Mapping[str, Any]]) -> None:
        """Rows of control.jsonl."""
        for row in orders:
            if row.get("what") == "stop" and self.stopped_ns is None:
                self.stopped_ns = int(row["at_ns"])


def lost_share(plan: Path, worker: int, rows: Path, begins: Begins) -> Share:
    """What this worker should have sent and did not. A phase of users that lasts a time has no such number."""
    undone: Share = Counter()
    read = WorkerPlan.read(plan, worker, os.environ)
    for phase, steps in read.phases():
        if phase.for_s is not None:
            continue
        begin_ns = begins.phases.get(phase.index)
        if begins.stopped_ns is not None and (begin_ns is None or not phase.open):
            continue  # nobody knows how far the others would have got
        for step in steps:
            due_ns = (begin_ns or 0) + int(((step.due_s or 0.0) - phase.behind_s) * 1e9)
            if begins.stopped_ns is not None and due_ns > begins.stopped_ns:
                break
            undone[step.traffic, phase.index] += 1
    for row in Tail(rows).rows():
        if row.get("row") == "begin" and not is_pipelined(row):
            undone[str(row["traffic"]), int(row["phase"])] -= 1
        elif row.get("row") == "missed":
            undone[str(row["traffic"]), int(row["phase"])] -= int(row["count"])
    return +undone
