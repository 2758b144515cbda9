"""A client that reads slowly, so that the server's send buffers fill.

It reads a few bytes at a time through a small receive buffer. Its outcome is the server's. Its times are its own doing
and enter no latency figure.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.unit_fields import DurationS, IntRange
from loadchaos.core.units import Range
from loadchaos.load.behaviours.base import Behaviour
from loadchaos.load.wire.exchange import Exchange

_BUFFER_BYTES = 4096
"""The kernel doubles it; below that Linux takes no smaller one in earnest."""


class Options(Behaviour):
    """At most `bytes` a read and `pause` between reads.

    After `for` it reads normally.
    """

    FRESH: ClassVar[bool] = True  # the receive buffer is agreed on while connecting
    bytes: IntRange = Range(64, 512)
    pause: DurationS = 0.05
    for_: DurationS = Field(default=10.0, alias="for")

    def act(self, exchange: Exchange) -> EndRow:
        rng = random.Random(exchange.step.seed)
        exchange.slowed = True
        if exchange.connect(_BUFFER_BYTES) and exchange.send():
            pauses = int(self.for_ / self.pause) if self.pause else 0
            while exchange.receive(max(1, self.bytes.pick(rng))):
                if pauses > 0:
                    pauses -= 1
                    exchange.pause(self.pause)
        return exchange.end_row()
