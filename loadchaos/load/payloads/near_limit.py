"""Length ladder: prompts of exact lengths around the context limit.

The margin is prompt tokens minus the limit. Below 0 every answer must be ok; from 0 on a server refuses, in the way of
its dialect and version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from loadchaos.core.model import Facts, Outcome, Output
from loadchaos.core.rng import Rng
from loadchaos.core.unit_fields import IntRange
from loadchaos.core.units import Range
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.text import write_prompt, write_short
from loadchaos.load.sequence_limits import refusal_limits
from loadchaos.load.wire.request import Request
from loadchaos.profile.base import ProfilePart
from loadchaos.profile.request_options import RequestContent
from loadchaos.server.dialects import DIALECTS

Reach = Literal["one", "edge", "over"]
_REACH_TEXTS: Mapping[Reach, str] = {"one": "of 1 token", "edge": "up to the limit", "over": "beyond the limit"}
_OVERSHOOT_TOKENS = 64
"""Tokens by which prompt and output exceed the context on `over` rungs."""


class Rung(ProfilePart):
    """One length: `margin` from the limit, and the output's reach.

    `one` is one token, `edge` fills the context, `over` exceeds it.
    """

    margin: int
    output: Reach


class Options(Payload):
    """Rungs of the ladder: the `band` below the limit, then `plus` above it.

    The band goes in steps of `step` and always includes its last value. Each length is sent with each of `output`. `limit`,
    the shortest prompt that is too long, is for a server that does not report its own (an LMDeploy whose KV cache may hold
    less than its context). Without it, the limit is searched before the load, with at most 40 one-token answers.
    """

    ORDER: ClassVar[int] = 20
    can_kill: ClassVar[bool] = True

    band: IntRange = Range(-1100, -1)
    step: int = Field(default=50, gt=0)
    plus: tuple[int, ...] = (0, 1, 64)
    output: tuple[Reach, ...] = Field(default=("one", "edge", "over"), min_length=1)
    limit: int | None = Field(default=None, gt=0)
    rung: Rung | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _margins_valid(self) -> Options:
        if self.band.high >= 0:
            raise ValueError(f"band lies below the limit, plus at it and above: -1 at most (got {self.band})")
        if any(p < 0 for p in self.plus):
            raise ValueError(f"plus counts from the limit up (got {min(self.plus)})")
        return self

    @property
    def searches_limit(self) -> bool:
        return self.limit is None

    def in_turn(self) -> Sequence[Options]:
        return [self.model_copy(update={"rung": rung}) for rung in self.rungs()]

    def rungs(self) -> list[Rung]:
        """All lengths with all outputs. Above the limit the output makes no difference."""
        margins = list(range(self.band.low, self.band.high + 1, self.step))
        if margins[-1] != self.band.high:
            margins.append(self.band.high)
        below = [Rung(margin=m, output=o) for m in margins for o in self.output]
        return below + [Rung(margin=m, output="one") for m in sorted(self.plus)]

    def per_request(self) -> RequestContent:
        """Average content for `explain`; without `limit`, the context's length is known only when the server is."""
        return RequestContent(tokens=float(self.limit)) if self.limit else RequestContent(whole_contexts=1.0)

    def outputs(self, traffic_output: float) -> list[float | None]:  # noqa: ARG002 - each rung has its own
        return [_max_output(rung) for rung in self.rungs()]

    def describe(self) -> str:
        above = f", then {', '.join(f'+{p}' for p in self.plus)}" if self.plus else ""
        return (
            f"{len(self.rungs())} cases around the context limit: {self.band} tokens from it in steps of "
            f"{self.step}{above}; answers {', '.join(_REACH_TEXTS[reach] for reach in self.output)}"
        )

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Set text, output and expected outcome of one rung. If the limit is unknown, a short prompt is sent instead."""
        rung = self.rung or self.rungs()[request.step.ordinal % len(self.rungs())]
        limits = refusal_limits(facts, self.limit)
        tokens = 0 if limits is None else limits.prompt + 1 + rung.margin
        request.fixed_length = True
        if limits is None or facts.text is None or tokens - request.image_tokens <= facts.text.overhead:
            request.output = Output(max=1)
            why = "the server's limit or token count is unknown, or the limit is too small"
            write_short(request, facts, rng, why)
            return
        write_prompt(request, facts, tokens - request.image_tokens, rng)
        request.edge = rung.margin
        request.output = _output(rung.output, max(1, limits.whole - tokens))
        if tuple(request.step.expect) == ("ok",):
            request.expect = list(expected_outcomes(rung, facts))


def _output(reach: Reach, remaining: int) -> Output:
    if reach == "one":
        return Output(max=1)
    return Output(exact=remaining) if reach == "edge" else Output(max=remaining + _OVERSHOOT_TOKENS)


def _max_output(rung: Rung) -> int:
    if rung.output == "one" or rung.margin >= 0:
        return 1
    return -rung.margin + (_OVERSHOOT_TOKENS if rung.output == "over" else 0)


def expected_outcomes(rung: Rung, facts: Facts) -> Sequence[Outcome]:
    """Correct outcomes of a rung: ok below the limit, the dialect's refusal from 0 on; too much output may be cut."""
    dialect = DIALECTS.get(facts.dialect)
    refusal: Sequence[Outcome] = dialect.at(facts.version).over_length if dialect else ("rejected",)
    if rung.margin >= 0:
        return refusal
    return ("ok", *(o for o in refusal if o != "ok")) if rung.output == "over" else ("ok",)
