"""A client that aborts at a chosen moment: a token, a time, before a byte.

Its outcome is `aborted`, which is no failure. An outcome that the server decided before we hang up stands: an error
event that came first is a `stream_error`, and an answer that ended before the chosen moment keeps its outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from pydantic import model_validator

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.unit_fields import DurationS, IntRange
from loadchaos.load.behaviours.base import Behaviour
from loadchaos.load.wire.exchange import Exchange

_PREFILL_WAIT_S = 0.02
"""Long enough for the server to have taken the request in, short beside any prefill worth cancelling."""


class Options(Behaviour):
    """Moment to hang up: exactly one of `at_token`, `before` and `after`.

    `at_token` counts chunks with content, from 1. `before: body` hangs up after the request's head, `first_byte` while it
    is queued or in prefill, `end` when the finish_reason is there and the stream's last events are not.
    `leave: reset` closes with a TCP reset.
    """

    at_token: IntRange | None = None
    before: Literal["body", "first_byte", "end"] | None = None
    after: DurationS | None = None
    leave: Literal["close", "reset"] = "close"

    @property
    def needs_stream(self) -> bool:
        """True if the moment only exists in a stream. Other answers have no tokens to count."""
        return self.at_token is not None or self.before == "end"

    @model_validator(mode="after")
    def _exactly_one_moment(self) -> Options:
        given = [n for n in ("at_token", "before", "after") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(
                f"abort needs exactly one of at_token, before, after (got {' and '.join(given) or 'none'})"
            )
        if self.at_token is not None and self.at_token.low < 1:
            raise ValueError(f"at_token counts from 1 (got {self.at_token})")
        return self

    def act(self, exchange: Exchange) -> EndRow:
        if exchange.connect() and _reaches_moment(exchange, self):
            exchange.hang_up(reset=self.leave == "reset")
        return exchange.end_row()


def _reaches_moment(exchange: Exchange, options: Options) -> bool:
    """Send and read until the moment to hang up; False: the exchange ended before."""
    if not (exchange.send_piece(exchange.request.head, whole=False) if options.before == "body" else exchange.send()):
        return False
    if options.before in ("body", "first_byte"):
        exchange.pause(_PREFILL_WAIT_S)
        return True
    if options.after is not None:
        exchange.hang_up_after(options.after)
    return exchange.receive_all(_hang_up_condition(exchange, options))


def _hang_up_condition(exchange: Exchange, options: Options) -> Callable[[], bool]:
    if options.before == "end":
        return lambda: exchange.answered
    if options.at_token is None:
        return lambda: False
    token = options.at_token.pick(random.Random(exchange.step.seed))
    return lambda: exchange.tokens >= token
