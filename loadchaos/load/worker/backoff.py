"""Pauses of a user after instant errors."""

from __future__ import annotations

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.worker_plan import WorkerPlan

DEAD_SERVER_PAUSE_S = 0.5
"""Pause of a user, in seconds, after a request to a dead or absent server."""


def pause_s(plan: WorkerPlan, row: EndRow, took_s: float, slot: Slot) -> float:
    """Pause of a user after a request, in seconds; 0 or less: none. Without it, users send thousands of requests a
    second to a gateway whose server is gone, and use up their whole plan before a pause of the load can arrive.
    """
    if row["outcome"] == "aborted" or row["outcome"] in row["expect"]:
        slot.errors_in_row = 0
        return 0.0
    paused_s = plan.backoff_s(slot.errors_in_row)
    slot.errors_in_row += 1
    if plan.server_is_gone(row):
        paused_s = max(paused_s, DEAD_SERVER_PAUSE_S)
    return paused_s - took_s
