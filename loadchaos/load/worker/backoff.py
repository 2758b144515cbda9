"""Pauses of a user after instant errors."""

from __future__ import annotations

from loadchaos.core.model import Reply
from loadchaos.load.wire.exchange import WireRequest
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.request_rows import expected_outcomes
from loadchaos.load.worker.worker_plan import WorkerPlan

DEAD_SERVER_PAUSE_S = 0.5
"""Pause of a user, in seconds, after a request to a dead or absent server."""


def pause_s(plan: WorkerPlan, wire: WireRequest, reply: Reply, took_s: float, slot: Slot) -> float:
    """Pause of a user after a reply, in seconds; 0 or less: none.

    Without it, users send thousands of requests a second to a gateway whose server is gone, and use up their whole plan
    before a pause of the load can arrive.
    """
    if reply.outcome == "aborted" or reply.outcome in expected_outcomes(wire.request):
        slot.errors_in_row = 0
        return 0.0
    paused_s = plan.backoff_s(slot.errors_in_row)
    slot.errors_in_row += 1
    if plan.server_is_gone(reply):
        paused_s = max(paused_s, DEAD_SERVER_PAUSE_S)
    return paused_s - took_s
