"""A client that pipelines several requests on one connection (HTTP/1.1).

The step is the first request. The others ask the same again, each a request of its own in the ledger. A server may
answer one by one or close after any answer, but must not mix answers up: an id of another request is `wrong_output`
(RFC 9112, 9.3.2).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.behaviours.base import Behaviour
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.pipelined import PipelinedExchange


class Options(Behaviour):
    """`depth` requests on the connection, the step's own included."""

    FRESH: ClassVar[bool] = True
    depth: Annotated[IntRange, at_least(2, "a pipeline is 2 requests deep or more")] = Range(2, 2)

    def follower_count(self, seed: int) -> int:
        return self.depth.low + seed % (self.depth.high - self.depth.low + 1) - 1

    def act(self, exchange: Exchange) -> EndRow:
        sent = b"".join(c.request.head + c.request.body for c in (exchange, *exchange.pipelined))
        if exchange.connect() and exchange.send_piece(sent):
            exchange.receive_all()
        return _checked_row(exchange, exchange)

    def act_pipelined(self, exchange: PipelinedExchange, first: Exchange) -> EndRow:
        if exchange.start_reading():
            exchange.receive_all()
        return _checked_row(exchange, first)


def _checked_row(exchange: Exchange, first: Exchange) -> EndRow:
    """Make the end row. An ok answer must not name another of the requests on the connection."""
    row = exchange.end_row()
    named = [
        c.request.id for c in (first, *first.pipelined) if c.request.id and c.request.id in (row["request_id"] or "")
    ]
    if row["outcome"] == "ok" and named and (other := max(named, key=len)) != exchange.request.id:
        row["outcome"], row["error"] = "wrong_output", f"the word of another request is in the answer: {other}"
    return row
