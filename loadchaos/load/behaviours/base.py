"""Base of client behaviours: options in a profile, and the steps of a client."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.pipelined import PipelinedExchange
from loadchaos.profile.request_options import BehaviourOptions


class Behaviour(BehaviourOptions):
    """A behaviour. With `FRESH` each request has a connection of its own."""

    FRESH: ClassVar[bool] = False

    @abstractmethod
    def act(self, exchange: Exchange) -> EndRow:
        """Run one exchange from connecting to its reply. Network errors never raise."""

    def follower_count(self, seed: int) -> int:  # noqa: ARG002 - for those that pipeline
        """Number of requests that the connection carries after the step's own."""
        return 0

    def act_pipelined(self, exchange: PipelinedExchange, first: Exchange) -> EndRow:
        """Read the answer of a follower of `first`."""
        raise NotImplementedError
