"""Endpoint of an inference server: path, body, the reader of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadchaos.core.model import Facts
from loadchaos.load.payloads import sampling
from loadchaos.load.wire.answer_reader import AnswerReader
from loadchaos.load.wire.request import Request


@dataclass(frozen=True)
class ModelEndpoint:
    """An endpoint of an inference server.

    Attributes:
        path: its path at a server without a dialect.
        body: makes the body of a request.
        payloads: names of the payloads that a body can hold; None: all.
        answer: reads an answer.
        streams: it can stream its answers.
        generates: its answers are text of a length that a request asks for.
        exact_fields: fields that ask for an exact length here, of those that the dialect has; None: all of them.
        content_type: type of the body.
        headers: more headers of a request.
        needs: a payload without which there is no body.
        lacks: payloads and options of payloads that a body cannot hold, such as `batch` and `sampling.n`.
    """

    path: str
    body: Callable[[Request, Facts], bytes]
    payloads: frozenset[str] | None
    answer: type[AnswerReader] = AnswerReader
    streams: bool = True
    generates: bool = True
    exact_fields: frozenset[str] | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    lacks: frozenset[str] = frozenset()

    def carries(self, payload: str) -> bool:
        return payload not in self.lacks and (self.payloads is None or payload in self.payloads)

    def can_ask_exact(self, fields: Mapping[str, str]) -> bool:
        """Tell if a body can ask for an exact length, by fields of a dialect."""
        return bool(fields) and (self.exact_fields is None or bool(self.exact_fields & fields.keys()))


def all_sampling_but(*kept: str) -> frozenset[str]:
    """Name the options of `sampling` without some, for `lacks`."""
    return frozenset(f"sampling.{name}" for name in sampling.Options.model_fields if name not in kept)


def content_parts(request: Request) -> list[dict[str, Any]]:
    """Parse the content parts of chat, which another endpoint writes anew."""
    joined = b"".join(request.parts).removesuffix(b",")
    return list(orjson.loads(b"[%s]" % joined)) if joined else []


def earlier_messages(request: Request) -> list[dict[str, Any]]:
    return [orjson.loads(message.removesuffix(b",")) for message in request.history]
