"""A client that sends part of a request, or never reads, and then leaves.

Its outcome is `aborted`, which is no failure, unless the server closed first. A server has to bear hundreds of these
and must free their resources when they are gone.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.unit_fields import DurationS
from loadchaos.load.behaviours.base import Behaviour
from loadchaos.load.wire.exchange import Exchange


class Options(Behaviour):
    """The part that is `sent`, the time it waits then, and the way it leaves."""

    FRESH: ClassVar[bool] = True
    sent: Literal["nothing", "half_head", "head", "half_body", "all"] = "half_body"
    hold: DurationS = 5.0
    leave: Literal["close", "reset"] = "close"

    def act(self, exchange: Exchange) -> EndRow:
        exchange.slowed = True
        head, body = exchange.request.head, exchange.request.body
        part = {
            "nothing": b"",
            "half_head": head[: len(head) // 2],
            "head": head,
            "half_body": head + body[: len(body) // 2],
            "all": head + body,
        }[self.sent]
        if exchange.connect() and (not part or exchange.send_piece(part)):
            exchange.pause(self.hold)
            exchange.hang_up(reset=self.leave == "reset")
        return exchange.end_row()
