"""Client behaviours: how a client connects, sends, reads and hangs up.

A behaviour is a module with `Options` (a pydantic model: its keys in a profile), `FRESH` (True: each request has a
connection of its own) and `act`, which calls the steps of one `Exchange` and returns its end row. `Options.needs_stream`
may say that a behaviour has no effect on answers that are not streamed. A behaviour that sends several requests at once
also has `follower_count` and `act_pipelined`. To add one, copy `plain.py` and add an entry to
BEHAVIOURS below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from pydantic import BaseModel

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.behaviours import abort, big_headers, churn, drip, half_open, pipeline, plain, slow_read
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.pipelined import PipelinedExchange

__all__ = ["BEHAVIOURS", "PIPELINING", "Behaviour", "PipeliningBehaviour"]


class Behaviour(Protocol):
    """Interface of a behaviour; each module of the table implements it."""

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - it is the name of a class
        ...

    @property
    def FRESH(self) -> bool:  # noqa: N802 - a constant of a module
        """True if each request has a connection of its own."""

    def act(self, exchange: Exchange) -> EndRow:
        """Run one exchange from connecting to its reply. Network errors never raise."""


class PipeliningBehaviour(Behaviour, Protocol):
    """A behaviour whose connection carries more requests after the step's own."""

    def follower_count(self, options: BaseModel, seed: int) -> int: ...

    def act_pipelined(self, exchange: PipelinedExchange, first: Exchange) -> EndRow: ...


BEHAVIOURS = cast(
    "Mapping[str, Behaviour]",
    {
        "plain": plain,
        "abort": abort,
        "slow_read": slow_read,
        "drip": drip,
        "churn": churn,
        "half_open": half_open,
        "pipeline": pipeline,
        "big_headers": big_headers,
    },
)
PIPELINING = cast(
    "Mapping[str, PipeliningBehaviour]", {n: b for n, b in BEHAVIOURS.items() if hasattr(b, "act_pipelined")}
)
"""The part of the table whose behaviours send several requests at once."""
