"""A client that sends several requests at once on one connection, takes the first answer and leaves (RFC 9112, 9.3.2).

The step is the first request; what follows is the same request again, and we hang up on it as planned. A server may
serve pipelined requests one by one or close behind the first, but must neither mix answers up nor keep what we left.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, field_validator

from loadchaos.model import Reply
from loadchaos.units import IntRange, Range
from loadchaos.wire.call import Call

FRESH = True


class Options(BaseModel):
    """`depth` requests on the connection, the step's own included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: IntRange = Range(2, 2)

    @field_validator("depth")
    @classmethod
    def _several(cls, value: Range) -> Range:
        if value.low < 2:
            raise ValueError(f"a pipeline is 2 requests deep or more (got {value})")
        return value


def act(call: Call) -> Reply:
    """Connect, send all of them at once, read the first answer."""
    options: Options = call.options
    depth = options.depth.low + call.seed % (options.depth.high - options.depth.low + 1)
    if call.connect() and call.send_piece((call.sending.head + call.sending.body) * depth):
        while call.receive():
            pass
    return call.reply()
