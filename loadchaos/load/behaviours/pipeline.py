"""A client that pipelines several requests on one connection (HTTP/1.1).

The step is the first request. The others ask the same again, each a request of its own in the ledger. A server may
answer one by one or close after any answer, but must not mix answers up: an id of another request is `wrong_output`
(RFC 9112, 9.3.2).
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
    def _at_least_two(cls, value: Range) -> Range:
        if value.low < 2:
            raise ValueError(f"a pipeline is 2 requests deep or more (got {value})")
        return value


def follower_count(options: BaseModel, seed: int) -> int:
    """Number of requests that follow the step's own."""
    assert isinstance(options, Options)
    return options.depth.low + seed % (options.depth.high - options.depth.low + 1) - 1


def act(exchange: Exchange) -> Reply:
    """Connect, send all requests at once, read the first answer."""
    sent = b"".join(c.wire.head + c.wire.request.body for c in (exchange, *exchange.pipelined))
    if exchange.connect() and exchange.send_piece(sent):
        exchange.receive_all()
    return _checked_reply(exchange, exchange)


def act_pipelined(exchange: PipelinedExchange, first: Exchange) -> Reply:
    """Read the answer of a request further back."""
    if exchange.start_reading():
        exchange.receive_all()
    return _checked_reply(exchange, first)


def _checked_reply(exchange: Exchange, first: Exchange) -> Reply:
    """Make the reply.

    It must not name another of the requests on the connection.
    """
    reply = exchange.reply()
    named = [i for c in (first, *first.pipelined) if (i := c.wire.request_id) and i in (reply.request_id or "")]
    if reply.outcome != "ok" or not named or max(named, key=len) == exchange.wire.request_id:
        return reply
    return replace(
        reply, outcome="wrong_output", error=f"the word of another request is in the answer: {max(named, key=len)}"
    )
