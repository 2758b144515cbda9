"""Answers that grow over given positions, such as 32,768.

The prompt ends a few tokens before the position and the answer passes it.
Longer prompts pass the earlier positions in prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from loadchaos.core.model import Facts, Output
from loadchaos.core.rng import Rng
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.text import write_prompt, write_short
from loadchaos.load.sequence_limits import sequence_limits
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import RequestContent

NO_POSITION = "no position fits the server, or its context or token count is unknown"


def _positive(at: tuple[int, ...]) -> tuple[int, ...]:
    if any(position < 1 for position in at):
        raise ValueError(f"a position is 1 or more (got {min(at)})")
    return at


Positions = Annotated[tuple[int, ...], AfterValidator(_positive)]
SideTokens = Annotated[IntRange, at_least(1, "an answer crosses a position by 1 token or more on each side")]


class Options(Payload):
    """Positions to cross, in turn.

    Those that do not fit the server are left out.
    A prompt ends `before` tokens before its position, and the answer goes on for `past` tokens.
    """

    ORDER: ClassVar[int] = 20
    at: Positions = Field(default=tuple(1 << n for n in range(10, 18)), min_length=1)
    before: SideTokens = Range(1, 24)
    past: SideTokens = Range(8, 40)

    def per_request(self) -> RequestContent:
        return RequestContent(tokens=sum(self.at) / len(self.at))

    def outputs(self, traffic_output: float) -> list[float | None]:  # noqa: ARG002 - each position has its own
        return [float(self.before.high + self.past.high)]

    def describe(self) -> str:
        shown = ", ".join(f"{position:,}" for position in self.at)
        return f"answers that cross the positions {shown}, in turn, as far as the context of the server allows"

    def fitting(self, facts: Facts) -> Sequence[int]:
        """Positions that a sequence can cross on this server."""
        limits = sequence_limits(facts)
        most = min(limits.surely_fits - self.past.high, limits.prompt + self.before.low)
        least = (facts.text.overhead if facts.text is not None else 0) + self.before.high + 1
        return [p for p in self.at if least < p <= most]

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        fitting = self.fitting(facts)
        request.fixed_length = True
        if not fitting or facts.text is None:
            write_short(request, facts, rng, NO_POSITION)
            request.output = Output(max=1)
            return
        before = rng.between(self.before.low, self.before.high)
        past = rng.between(self.past.low, self.past.high)
        write_prompt(request, facts, fitting[request.step.ordinal % len(fitting)] - before, rng)
        request.output = Output(exact=before + past)
