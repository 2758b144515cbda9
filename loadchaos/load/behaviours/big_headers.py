"""A client whose request has many or long header lines.

A server answers, or refuses with 400, 413, 414 or 431. All of these are `rejected`, also without an error body.
"""

from __future__ import annotations

import random
from typing import Annotated, ClassVar

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.behaviours.base import Behaviour
from loadchaos.load.wire.exchange import Exchange

_REFUSALS = (400, 413, 414, 431)


class Options(Behaviour):
    """`lines` header lines of `bytes` bytes in all."""

    FRESH: ClassVar[bool] = True  # a server may close the connection after its refusal
    lines: Annotated[IntRange, at_least(1, "at least 1 header line is sent")] = Range(1, 200)
    bytes: IntRange = Range(4_000, 120_000)

    def act(self, exchange: Exchange) -> EndRow:
        head, end = exchange.request.head[:-2], exchange.request.head[-2:]
        whole = head + _lines(self, exchange.step.seed) + end + exchange.request.body
        if exchange.connect() and exchange.send_piece(whole):
            exchange.receive_all()
        row = exchange.end_row()
        if row["outcome"] == "http_error" and row["status"] in _REFUSALS:
            row["outcome"] = "rejected"
        return row


def _lines(options: Options, seed: int) -> bytes:
    rng = random.Random(seed)
    count = options.lines.pick(rng)
    value = b"x" * max(1, options.bytes.pick(rng) // count - len(b"x-filler-000: \r\n"))
    return b"".join(b"x-filler-%03d: %b\r\n" % (number, value) for number in range(count))
