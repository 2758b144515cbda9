"""A client that makes a connection for each request and lets go of it behind the answer; nothing is kept alive."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from loadchaos.core.model import Reply
from loadchaos.load.wire.exchange import Exchange

FRESH = True


class Options(BaseModel):
    """None."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def act(call: Exchange) -> Reply:
    """Connect, send, read to the end; the call closes what was its own."""
    if call.connect() and call.send():
        call.receive_all()
    return call.reply()
