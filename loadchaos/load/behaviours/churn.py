"""A client that makes a connection for each request and lets go of it behind the answer; nothing is kept alive."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from loadchaos.core.model import Reply
from loadchaos.load.wire.exchange import Exchange

FRESH = True


class Options(BaseModel):
    """None."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def act(exchange: Exchange) -> Reply:
    """Connect, send, read to the end; the call closes what was its own."""
    if exchange.connect() and exchange.send():
        exchange.receive_all()
    return exchange.reply()
