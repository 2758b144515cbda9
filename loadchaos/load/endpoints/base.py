"""Endpoint of an inference server: path, body, the reader of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from loadchaos.core.model import Facts
from loadchaos.load.payloads import sampling
from loadchaos.load.wire.answer_reader import AnswerReader
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sse import JsonObject
from loadchaos.profile.profile import EndpointSpec

OF_CONVERSATIONS = frozenset(
    {
        "text", "quote", "conversation", "images", "image_positions", "near_limit", "structured", "tools", "sampling",
        "extra_body",
    }
)  # fmt: skip
"""Payloads of endpoints that answer a conversation in a form of their own."""


@dataclass(frozen=True, kw_only=True)
class ModelEndpoint(EndpointSpec):
    """An endpoint of an inference server.

    Attributes:
        path: its path at a server without a dialect.
        exact_fields: fields that ask for an exact length here, of those that the dialect has; None: all of them.
    """

    body: Callable[[Request, Facts], bytes]
    answer: type[AnswerReader] = AnswerReader
    exact_fields: frozenset[str] | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def can_ask_exact(self, fields: Mapping[str, str]) -> bool:
        """Tell if a body can ask for an exact length, by fields of a dialect."""
        return bool(fields) and (self.exact_fields is None or bool(self.exact_fields & fields.keys()))


def all_sampling_but(*kept: str) -> frozenset[str]:
    """Name the options of `sampling` without some, for `lacks`."""
    return frozenset(f"sampling.{name}" for name in sampling.Options.model_fields if name not in kept)


def content_parts(request: Request) -> list[JsonObject]:
    """Parse the content parts of chat, which another endpoint writes anew."""
    joined = b"".join(request.parts).removesuffix(b",")
    return list(orjson.loads(b"[%s]" % joined)) if joined else []


def earlier_messages(request: Request) -> list[JsonObject]:
    return [orjson.loads(message.removesuffix(b",")) for message in request.history]
