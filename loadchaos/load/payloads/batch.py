"""Several texts in one request; each has as many tokens as the payload `text` gives to the first."""

from __future__ import annotations

from typing import Annotated, ClassVar

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.text import Options as Text
from loadchaos.load.payloads.text import write_prompt
from loadchaos.load.wire.request import Request

_TOKENS = 64


class Options(Payload):
    """`count` texts in one request.

    They are inputs of embeddings, documents of rerank and score.
    """

    ORDER: ClassVar[int] = 40
    count: Annotated[IntRange, at_least(1, "a request has at least 1 text")] = Range(4, 4)

    def describe(self) -> str:
        return f"{self.count} such texts in one request"

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Write more texts like the first; their number is also that of results."""
        count = rng.between(self.count.low, self.count.high)
        wanted = request.wanted_tokens or _TOKENS
        tokens = min(wanted, facts.max_model_len or wanted)  # the limit holds for each text, not for their sum
        if tokens < wanted:
            asked = text.tokens.low if isinstance(text := request.step.payload.get("text"), Text) else wanted
            request.adapt(f"{tokens} tokens a text", str(wanted), "the server's limit", allowed=tokens >= asked)
        if request.text is None or tokens < wanted:
            write_prompt(request, facts, tokens, rng)
        first, counted, nonce, sent = request.text, request.text_tokens, request.nonce, request.secret_sent
        for _ in range(count - 1):
            write_prompt(request, facts, tokens, rng)
            request.more_texts.append(request.text or "")
        request.text, request.nonce, request.secret_sent = first, nonce, sent
        request.text_tokens = None if counted is None else counted * count
        request.fixed_length = True
        request.answers = count
