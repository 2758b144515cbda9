"""Quote: the answer has to repeat the prompt's own secret word.

An answer that was mixed up with another one then holds a secret word of another request, which is found in every answer.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.load.payloads.base import Payload
from loadchaos.load.wire.request import Request


class Options(Payload):
    """Number of repetitions of the secret word in the answer.

    Several, because answers that are mixed up in the middle then still hold a whole word of the other request.
    """

    ORDER: ClassVar[int] = 5
    ignores: ClassVar[frozenset[str] | None] = frozenset({"conversation", "near_limit", "positions"})
    times: int = Field(default=3, ge=2, le=8)

    def describe(self) -> str:
        return f"answers that repeat the secret word of their prompt {self.times} times"

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:  # noqa: ARG002 - text.py writes the order
        """Order the quote behind the text; the prompt's length becomes unknown."""
        request.quotes = self.times
        request.length_known = False
        request.extra["temperature"] = 0
