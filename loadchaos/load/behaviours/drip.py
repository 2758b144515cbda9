"""A client that sends its request slowly, in small pieces (Slowloris).

Its outcome is the server's. Its times are its own doing and enter no latency figure.
"""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from pydantic import Field

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.unit_fields import DurationS, IntRange
from loadchaos.core.units import Range
from loadchaos.load.behaviours.base import Behaviour
from loadchaos.load.wire.exchange import Exchange


class Options(Behaviour):
    """Size of the pieces in `bytes` and the `pause` after each.

    `of` says if only the `body` or also the head is sent slowly. After `for`, the rest is sent at once.
    """

    FRESH: ClassVar[bool] = True  # a stale connection would make it send again, and at once
    bytes: IntRange = Range(1, 16)
    pause: DurationS = 0.01
    for_: DurationS = Field(default=5.0, alias="for")
    of: Literal["body", "all"] = "body"

    def act(self, exchange: Exchange) -> EndRow:
        rng = random.Random(exchange.step.seed)
        exchange.slowed = True
        head, body = exchange.request.head, exchange.request.body
        whole, at = (head + body, 0) if self.of == "all" else (body, 0)
        if not exchange.connect() or (self.of == "body" and not exchange.send_piece(head)):
            return exchange.end_row()
        pauses = int(self.for_ / self.pause) if self.pause else len(whole)
        while at < len(whole):
            size = max(1, self.bytes.pick(rng)) if pauses > 0 else len(whole)
            if not exchange.send_piece(whole[at : at + size]):
                return exchange.end_row()  # the server refused before it had read all
            at += size
            pauses -= 1
            if at < len(whole) and self.pause and not exchange.pause(self.pause):
                break
        exchange.receive_all()
        return exchange.end_row()
