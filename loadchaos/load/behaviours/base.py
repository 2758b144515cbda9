"""A normal client, and the base of the others: options in a profile, and the steps of a client."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.pipelined import PipelinedExchange
from loadchaos.profile.request_options import BehaviourOptions


class Behaviour(BehaviourOptions):
    """The behaviour `plain`: it has no options, sends the whole request and reads the answer to its end.

    Others override `act`. With `FRESH` each request has a connection of its own.
    """

    FRESH: ClassVar[bool] = False

    def act(self, exchange: Exchange) -> EndRow:
        """Run one exchange from connecting to its reply. Network errors never raise."""
        if exchange.connect() and exchange.send():
            exchange.receive_all()
        return exchange.end_row()

    def follower_count(self, seed: int) -> int:  # noqa: ARG002 - for those that pipeline
        """Number of requests that the connection carries after the step's own."""
        return 0

    def act_pipelined(self, exchange: PipelinedExchange, first: Exchange) -> EndRow:
        """Read the answer of a follower of `first`."""
        raise NotImplementedError
