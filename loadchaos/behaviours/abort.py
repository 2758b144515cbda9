"""A client that hangs up: at a token, before the first byte, or after a time. Its outcome is `aborted`, no failure.

What the server decides before we hang up stands: an error event that came first is a `stream_error`, and an answer
that was over before the chosen token is what it is.
"""

from __future__ import annotations

import random
import time
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from loadchaos.model import Reply
from loadchaos.units import DurationS, IntRange
from loadchaos.wire.call import Call

_INTO_PREFILL_S = 0.02
"""Long enough for the server to have taken the request in, short beside any prefill worth cancelling."""


class Options(BaseModel):
    """When to hang up; exactly one of the three. `at_token` counts chunks with content, from 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_token: IntRange | None = None
    before: Literal["first_byte"] | None = None
    after: DurationS | None = None

    @model_validator(mode="after")
    def _one_moment(self) -> Options:
        given = [n for n in ("at_token", "before", "after") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"abort needs one of at_token, before, after (got {' and '.join(given) or 'none'})")
        if self.at_token is not None and self.at_token.low < 1:
            raise ValueError(f"at_token counts from 1 (got {self.at_token})")
        return self


def act(call: Call) -> Reply:
    """Connect, send, read up to the chosen moment, hang up."""
    options: Options = call.options
    if not call.connect() or not call.send():
        return call.reply()
    if options.before == "first_byte":
        time.sleep(_INTO_PREFILL_S)
        call.hang_up()
        return call.reply()
    if options.after is not None:
        call.hang_up_after(options.after)
        while call.receive():
            pass
        return call.reply()
    assert options.at_token is not None
    token = options.at_token.pick(random.Random(call.seed))
    while call.receive():
        if call.tokens >= token:
            call.hang_up()
    return call.reply()
