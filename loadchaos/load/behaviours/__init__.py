"""SHELF: how a client behaves. `plain` is the one to copy.

A behaviour is one file with an `Options` model (what a profile may say about it), `FRESH` (whether each call has a
connection of its own) and `act`, which takes the steps of one call and returns its reply. Options may say by `needs_stream`
that they mean nothing where answers come whole. A new behaviour is one file, and one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from pydantic import BaseModel

from loadchaos.core.model import Reply
from loadchaos.load.behaviours import abort, churn, drip, half_open, pipeline, plain, slow_read
from loadchaos.load.wire.exchange import Exchange

__all__ = ["BEHAVIOURS", "Behaviour"]


class Behaviour(Protocol):
    """What an entry of the table offers; a module does."""

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - it is the name of a class
        """The pydantic model of its options."""

    @property
    def FRESH(self) -> bool:  # noqa: N802 - a constant of a module
        """Whether each call has a connection of its own."""

    def act(self, exchange: Exchange) -> Reply:
        """Take one call from connecting to its end. Never raises for what the network does."""


BEHAVIOURS: Mapping[str, Behaviour] = {
    "plain": cast("Behaviour", plain),
    "abort": cast("Behaviour", abort),
    "slow_read": cast("Behaviour", slow_read),
    "drip": cast("Behaviour", drip),
    "churn": cast("Behaviour", churn),
    "half_open": cast("Behaviour", half_open),
    "pipeline": cast("Behaviour", pipeline),
}
