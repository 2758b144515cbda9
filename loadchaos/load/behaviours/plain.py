"""A normal client.

Sends the whole request and reads the answer to its end.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.wire.exchange import Exchange

FRESH = False


class Options(BaseModel):
    """This behaviour has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def act(exchange: Exchange) -> EndRow:
    if exchange.connect() and exchange.send():
        exchange.receive_all()
    return exchange.end_row()
