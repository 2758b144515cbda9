"""A client that sends several requests at once on one connection and reads their answers in turn (RFC 9112, 9.3.2).

The step is the first request; those behind it ask the same again, each a request of its own in the ledger. A server may
answer one by one or close behind any answer, but must not mix answers up: an id of another request is `wrong_output`.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, field_validator

from loadchaos.core.model import Reply
from loadchaos.core.units import IntRange, Range
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.pipelined import PipelinedExchange

FRESH = True


class Options(BaseModel):
    """`depth` requests on the connection, the step's own included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: IntRange = Range(2, 2)

    @field_validator("depth")
    @classmethod
    def _several(cls, value: Range) -> Range:
        if value.low < 2:
            raise ValueError(f"a pipeline is 2 requests deep or more (got {value})")
        return value

    def behind(self, seed: int) -> int:
        """How many requests follow the step's own."""
        return self.depth.low + seed % (self.depth.high - self.depth.low + 1) - 1


def act(exchange: Exchange) -> Reply:
    """Connect, send all of them at once, read the first answer."""
    sent = b"".join(c.wire.head + c.wire.request.body for c in (exchange, *exchange.behind))
    if exchange.connect() and exchange.send_piece(sent):
        exchange.receive_all()
    return _own(exchange, exchange)


def act_behind(exchange: PipelinedExchange, first: Exchange) -> Reply:
    """Read the answer that is due to a request further back."""
    if exchange.take_over():
        exchange.receive_all()
    return _own(exchange, first)


def _own(exchange: Exchange, first: Exchange) -> Reply:
    """The reply, which must not name another of the requests on the connection."""
    reply = exchange.reply()
    named = [i for c in (first, *first.behind) if (i := c.wire.request_id) and i in (reply.request_id or "")]
    if reply.outcome != "ok" or not named or max(named, key=len) == exchange.wire.request_id:
        return reply
    return replace(
        reply, outcome="wrong_output", error=f"the word of another request is in the answer: {max(named, key=len)}"
    )
