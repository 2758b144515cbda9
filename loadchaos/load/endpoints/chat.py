"""The chat endpoint: /v1/chat/completions."""

from __future__ import annotations

import functools

import orjson

from loadchaos.core.field_changes import FieldChanges, with_changes
from loadchaos.core.model import Facts
from loadchaos.core.urls import CHAT_PATH
from loadchaos.load.endpoints.base import ModelEndpoint
from loadchaos.load.wire.request import Request
from loadchaos.server.dialects import DIALECTS


def _body(request: Request, facts: Facts) -> bytes:
    """Join the body's bytes. Images are base64 already and skip the JSON library."""
    text = orjson.dumps(request.text)
    head = b'{"model":' + _json_string(request.model or facts.model) + b',"messages":['
    content = [b"[", *request.parts, b'{"type":"text","text":', text, b"}]"] if request.parts else [text]
    tail = _tail(request, facts)
    if request.continues:  # results of tools are the last messages
        return b"".join((head, b"".join(request.history).removesuffix(b","), b"]", tail, b"}"))
    return b"".join((head, *request.history, b'{"role":"user","content":', *content, b"}]", tail, b"}"))


@functools.lru_cache(maxsize=64)
def _json_string(model: str) -> bytes:
    return orjson.dumps(model)


def _tail(request: Request, facts: Facts) -> bytes:
    seed = request.step.seed & 0x7FFFFFFF
    changes = facts.field_changes
    settings = request.output_tokens, request.output.exact is not None, request.stream, facts.dialect, changes
    if not request.extra:
        return _cached_tail(*settings) % seed
    return b"," + orjson.dumps({**_options(*settings, seed), **request.extra})[1:-1]


@functools.lru_cache(maxsize=1024)
def _cached_tail(count: int, exact: bool, stream: bool, dialect: str, changes: FieldChanges) -> bytes:
    """Build the body's tail with a placeholder for the seed. In most traffic only the seed differs."""
    options = _options(count, exact, stream, dialect, changes, 0)
    return b"," + orjson.dumps(options).replace(b'"seed":0', b'"seed":%d', 1)[1:-1]


def _options(
    count: int, exact: bool, stream: bool, dialect: str, changes: FieldChanges, seed: int
) -> dict[str, object]:
    options: dict[str, object] = {"max_tokens": count, "temperature": 0, "seed": seed}
    if stream:
        options["stream"] = True
        options["stream_options"] = {"include_usage": True}
    if exact and dialect in DIALECTS:
        for name, value in DIALECTS[dialect].exact_output.items():
            options[name] = count if value == "tokens" else True
    return with_changes(options, changes) if changes else options


def tail_options(request: Request, facts: Facts) -> dict[str, object]:
    """Return length, sampling and stream options, for endpoints like this one."""
    exact = request.output.exact is not None
    return _options(request.output_tokens, exact, request.stream, facts.dialect, (), request.step.seed & 0x7FFFFFFF)


ENDPOINT = ModelEndpoint(
    path=CHAT_PATH, body=_body, payloads=None, lacks=frozenset({"batch", "conversation.previous_response"})
)
