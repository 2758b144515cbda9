"""Workers beside their master on one machine: each writes its own rows, so a lost one is known by rows without an end."""

from __future__ import annotations

import time
from pathlib import Path

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.writer import Writer
from loadchaos.load.cluster.reassign import Begins, lost_share


def note_lost(plan: Path, workers: int) -> None:
    """Write what lost workers have left undone, as missed. May raise LedgerError."""
    folder = RunFolder(plan.parent)
    begins = Begins()
    begins.obey(row for row in Tail(folder.control).rows() if row.get("row") == "control")
    lost = [worker for worker in range(workers) if not _ended(folder.requests(worker))]
    if not lost:
        return
    for path in folder.request_files():
        for row in Tail(path).rows():
            begins.see(row)
    writer = Writer(folder.path / "requests-master.jsonl", "locust-master")
    for worker in lost:
        for (traffic, phase), count in sorted(lost_share(plan, worker, folder.requests(worker), begins).items()):
            writer.write(
                {
                    "row": "missed",
                    "at_ns": time.monotonic_ns(),
                    "traffic": traffic,
                    "phase": phase,
                    "why": "worker_lost",
                    "count": count,
                }
            )
    writer.close()


def _ended(rows: Path) -> bool:
    return any(row.get("row") == "load" and row.get("what") == "end" for row in Tail(rows).rows())
