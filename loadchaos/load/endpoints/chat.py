"""The chat endpoint: /v1/chat/completions."""

from __future__ import annotations

import functools

import orjson

from loadchaos.core.model import Facts, Step
from loadchaos.load.endpoints.base import ModelEndpoint
from loadchaos.load.payloads.base import Draft, output_tokens
from loadchaos.server.dialects import DIALECTS


def _body(draft: Draft, step: Step, facts: Facts) -> bytes:
    """Join the body's bytes. Images are base64 already and skip the JSON library."""
    text = orjson.dumps(draft.text)
    head = b'{"model":' + _json_string(draft.model or facts.model) + b',"messages":['
    content = [b"[", *draft.parts, b'{"type":"text","text":', text, b"}]"] if draft.parts else [text]
    tail = _tail(draft, step, facts)
    if draft.continues:  # results of tools are the last messages
        return b"".join((head, b"".join(draft.history).removesuffix(b","), b"]", tail, b"}"))
    return b"".join((head, *draft.history, b'{"role":"user","content":', *content, b"}]", tail, b"}"))


@functools.lru_cache(maxsize=64)
def _json_string(model: str) -> bytes:
    return orjson.dumps(model)


def _tail(draft: Draft, step: Step, facts: Facts) -> bytes:
    seed = step.seed & 0x7FFFFFFF
    settings = output_tokens(draft.output), draft.output.exact is not None, step.stream, facts.dialect
    if not draft.extra:
        return _cached_tail(*settings) % seed
    return b"," + orjson.dumps({**_options(*settings, seed), **draft.extra})[1:-1]


@functools.lru_cache(maxsize=1024)
def _cached_tail(count: int, exact: bool, stream: bool, dialect: str) -> bytes:
    """Build the body's tail with a placeholder for the seed.

    In most traffic only the seed differs.
    """
    return b"," + orjson.dumps(_options(count, exact, stream, dialect, 0)).replace(b'"seed":0', b'"seed":%d', 1)[1:-1]


def _options(count: int, exact: bool, stream: bool, dialect: str, seed: int) -> dict[str, object]:
    options: dict[str, object] = {"max_tokens": count, "temperature": 0, "seed": seed}
    if stream:
        options["stream"] = True
        options["stream_options"] = {"include_usage": True}
    if exact and dialect in DIALECTS:
        for name, value in DIALECTS[dialect].exact_output.items():
            options[name] = count if value == "tokens" else True
    return options


def tail_options(draft: Draft, step: Step, facts: Facts) -> dict[str, object]:
    """Return length, sampling and stream options, for endpoints like this one."""
    exact = draft.output.exact is not None
    return _options(output_tokens(draft.output), exact, step.stream, facts.dialect, step.seed & 0x7FFFFFFF)


ENDPOINT = ModelEndpoint(
    path="/v1/chat/completions",
    body=_body,
    payloads=None,
    lacks=frozenset({"batch", "conversation.previous_response"}),
)
