"""A client that sends its request slowly, in small pieces (Slowloris).

Its outcome is the server's. Its times are its own doing and enter no latency figure.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.unit_fields import DurationS, IntRange
from loadchaos.core.units import Range
from loadchaos.load.wire.exchange import Exchange
from loadchaos.profile.base import ProfilePart

FRESH = True  # a stale connection would make it send again, and at once


class Options(ProfilePart):
    """Size of the pieces in `bytes` and the `pause` after each.

    `of` says if only the `body` or also the head is sent slowly. After `for`, the rest is sent at once.
    """

    bytes: IntRange = Range(1, 16)
    pause: DurationS = 0.01
    for_: DurationS = Field(default=5.0, alias="for")
    of: Literal["body", "all"] = "body"


def act(exchange: Exchange) -> EndRow:
    options: Options = exchange.step.behaviour_options
    rng = random.Random(exchange.step.seed)
    exchange.slowed = True
    head, body = exchange.request.head, exchange.request.body
    whole, at = (head + body, 0) if options.of == "all" else (body, 0)
    if not exchange.connect() or (options.of == "body" and not exchange.send_piece(head)):
        return exchange.end_row()
    pauses = int(options.for_ / options.pause) if options.pause else len(whole)
    while at < len(whole):
        size = max(1, options.bytes.pick(rng)) if pauses > 0 else len(whole)
        if not exchange.send_piece(whole[at : at + size]):
            return exchange.end_row()  # the server refused before it had read all
        at += size
        pauses -= 1
        if at < len(whole) and options.pause and not exchange.pause(options.pause):
            break
    exchange.receive_all()
    return exchange.end_row()
