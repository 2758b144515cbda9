"""Images that begin at given tokens, such as the end of a prefill step.

An engine prefills a prompt in steps of a bounded number of tokens. Where the steps end decides what it needs of an image. An
image that begins right at the end of a step killed vLLM 0.22.1 with MTP (vllm-project/vllm#38551), and one token more or
less did not. Random lengths meet such a place in one of some thousand prompts.

The image begins the second question of a conversation. The tokens of the first question and its answer are counted exactly;
some templates put an image before the text of its message, so it could not stand there. How many tokens the template
puts between them and the image is not known: each position is tried with one prompt for each possible number, beginning
with the middle one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from loadchaos.core.model import SENT_AS_TEXT, Facts, TextFacts
from loadchaos.core.rng import Rng
from loadchaos.core.unit_fields import ImageSize
from loadchaos.core.units import Size
from loadchaos.load.payloads import image_tokens, images
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.live import message
from loadchaos.load.payloads.positions import NO_POSITION, Positions
from loadchaos.load.payloads.text import SHORT_TOKENS, corpus_for, write_prompt, write_short
from loadchaos.load.sequence_limits import sequence_limits
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import RequestContent

_USUAL_STEPS = (2048, 8192)
"""Tokens of a step of vLLM's server: its default, and that on GPUs with 70 GiB or more."""
_STEPS_EACH = 2
_BEFORE_IMAGE = 2
"""Tokens of an image before its first own one: none, one (`<|vision_start|>`) or two."""
_QUESTION_TOKENS = 16
_ANSWER_TOKENS = 1
_MOST_TRIES = 48
_WRITING = frozenset(
    {"text", "quote", "conversation", "near_limit", "positions", "images", "hostile_images", "video", "audio"}
)
"""Payloads that would write the same parts of the prompt."""


class Options(Payload):
    """Tokens at which an image begins, in turn, and the size of the image.

    Without `at` they are the ends of the first two steps of prefill. The server tells the size of a step, or 2,048 and 8,192
    are taken. Positions that do not fit the server are left out.
    """

    ORDER: ClassVar[int] = 20
    ignores: ClassVar[frozenset[str] | None] = _WRITING
    writes_turns: ClassVar[bool] = True
    at: Positions = Field(default=(), json_schema_extra={"minItems": 1})
    size: ImageSize = Size(256, 256)

    @property
    def most_images(self) -> int:
        return 1

    def sizes(self) -> Sequence[Size]:
        return (self.size,)

    def per_request(self) -> RequestContent:
        """Average content of a request for `explain`. Without `at`, with the usual size of a step."""
        at = self.at or (_USUAL_STEPS[0],)
        cost = image_tokens.predict("", self.size.width, self.size.height)
        return RequestContent(tokens=sum(at) / len(at), images=1.0, image_tokens=float(cost))

    def describe(self) -> str:
        where = " or ".join(f"{p:,}" for p in self.at) or "at the end of the first or second step of prefill"
        return (
            f"a turn of text, and then a new image of {self.size} that begins {'at token ' if self.at else ''}{where}"
        )

    def fitting(self, facts: Facts, output: int) -> Sequence[int]:
        """Positions at which an image and `output` tokens behind it fit."""
        text = facts.text
        overhead = 0 if text is None else text.overhead + _turn_overhead(text)
        steps = (facts.step_tokens,) if facts.step_tokens else _USUAL_STEPS
        wanted = self.at or tuple(step * n for n in range(1, _STEPS_EACH + 1) for step in steps)
        limits = sequence_limits(facts)
        cost, _ = image_tokens.token_cost(facts, self.size.width, self.size.height)
        most = min(limits.surely_fits - output, limits.prompt) - (cost + overhead + _QUESTION_TOKENS)
        return [p for p in wanted if overhead + _ANSWER_TOKENS + _BEFORE_IMAGE < p <= most]

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Write an earlier turn so long that the image begins at one position."""
        request.fixed_length = True
        fitting = self.fitting(facts, request.output_tokens)
        if facts.images is False:
            write_prompt(request, facts, SHORT_TOKENS, rng)
            request.notes.append(f"the model does not accept images: {SENT_AS_TEXT}")
            return
        if not fitting or facts.text is None:
            write_short(request, facts, rng, NO_POSITION)
            return
        tries = template_tokens(facts.text.overhead)
        position = fitting[request.step.ordinal // len(tries) % len(fitting)]
        _write_turn(request, facts.text, position - tries[request.step.ordinal % len(tries)], rng)
        write_prompt(request, facts, facts.text.overhead + request.history_tokens + _QUESTION_TOKENS, rng)
        _one_image(self.size).add(request, facts, rng)


def _write_turn(request: Request, text: TextFacts, tokens: int, rng: Rng) -> None:
    """Write a question and its answer of so many tokens, template included."""
    corpus = corpus_for(text)
    words = tokens - _turn_overhead(text)
    turn = (("user", words - _ANSWER_TOKENS), ("assistant", _ANSWER_TOKENS))
    request.history = [message(role=r, content=corpus.text_of(n, rng)) for r, n in turn]
    request.history_tokens = tokens
    request.length_known = text.turn_overhead is not None


def _turn_overhead(text: TextFacts) -> int:
    """Tokens that the template adds to an earlier turn. Where they were not measured, twice those of one message."""
    return 2 * text.overhead if text.turn_overhead is None else text.turn_overhead


@functools.lru_cache(maxsize=16)
def _one_image(size: Size) -> images.Options:
    return images.Options(size=size)


def template_tokens(overhead: int) -> Sequence[int]:
    """Possible numbers of tokens that the template puts before the image; the middle one is the first.

    `overhead`: tokens that it adds to a text, before and behind it.
    """
    most = overhead + _BEFORE_IMAGE
    middle = most // 2
    return sorted(range(most + 1), key=lambda n: (abs(n - middle), n))[:_MOST_TRIES]
