"""A normal client: it sends the whole request and reads the answer to its end."""

from __future__ import annotations

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.behaviours.base import Behaviour
from loadchaos.load.wire.exchange import Exchange


class Options(Behaviour):
    """This behaviour has no options."""

    def act(self, exchange: Exchange) -> EndRow:
        if exchange.connect() and exchange.send():
            exchange.receive_all()
        return exchange.end_row()
