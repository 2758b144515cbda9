"""Step and Facts -> Request: payloads add, then everything is fitted to the server and joined to one JSON body."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import orjson

from loadchaos.core.model import Facts, Output, Request, Step
from loadchaos.core.rng import Rng, hash64
from loadchaos.load.payloads.base import Draft, Payload
from loadchaos.load.payloads.text import prompt
from loadchaos.server.dialects import DIALECTS, Dialect

_DEFAULT_MAX_TOKENS = 128
_SHORTEST_PROMPT = 16
_ENDLESS = 1 << 62


def build(step: Step, facts: Facts, shelf: Mapping[str, Payload]) -> Request:
    """Pure: the same step and facts, the same bytes."""
    draft = Draft(step.output, step.expect)
    rng = Rng(hash64(step.seed, 7))
    names = step.payload if len(step.payload) < 2 else sorted(step.payload, key=lambda n: shelf[n].ORDER)
    for name in names:
        shelf[name].add(draft, step.payload[name], step, facts, rng)
    if draft.request is not None:
        return replace(draft.request, expect=draft.expect, fitted="; ".join(draft.notes))
    if draft.text is None:
        prompt(draft, facts, _SHORTEST_PROMPT + (facts.text.overhead if facts.text else 0), rng)
    # A step that expects a refusal means to send too much.
    if not draft.final and "rejected" not in step.expect:
        _fit(draft, facts, rng)
    return _request(draft, step, facts)


def _asked(output: Output) -> int:
    return output.exact or output.max or _DEFAULT_MAX_TOKENS


def _fit(draft: Draft, facts: Facts, rng: Rng) -> None:
    """Cut the output, then the text, until prompt and output are within the context and the KV cache."""
    if draft.text_tokens is None:
        return
    sequence = min(facts.max_model_len or _ENDLESS, facts.capacity_tokens or _ENDLESS)
    dialect = DIALECTS.get(facts.dialect)
    if facts.input_limit is not None and dialect is not None and not dialect.context_fits:
        # One bound of LMDeploy's engine (`max_session_len`) holds for prompt and answer together; it cuts answers silently.
        sequence = min(sequence, facts.input_limit)
    limit = min(sequence - 1, _ENDLESS if facts.input_limit is None else facts.input_limit)
    overhead = facts.text.overhead if facts.text else 0
    least = overhead + draft.history_tokens + draft.image_tokens + _SHORTEST_PROMPT
    prompt_tokens = draft.text_tokens + draft.image_tokens
    if prompt_tokens > limit >= least:
        allowed = limit - draft.image_tokens
        draft.notes.append(f"{allowed} tokens of text in place of {draft.text_tokens}: the server's limit")
        prompt(draft, facts, allowed, rng)
        prompt_tokens = allowed + draft.image_tokens
    if prompt_tokens + _asked(draft.output) > sequence > prompt_tokens:
        room = sequence - prompt_tokens
        draft.notes.append(f"{room} tokens of output in place of {_asked(draft.output)}: the server's limit")
        draft.output = replace(draft.output, **{"exact" if draft.output.exact else "max": room})


def _request(draft: Draft, step: Step, facts: Facts) -> Request:
    dialect = DIALECTS.get(facts.dialect)
    known = draft.text_tokens is not None and draft.image_tokens_known and draft.countable
    tokens = (draft.text_tokens or 0) + draft.image_tokens if known else None
    return Request(
        step,
        dialect.chat_path if dialect else "/v1/chat/completions",
        _body(draft, step, facts),
        step.stream,
        tokens,
        draft.images,
        draft.image_tokens,
        _asked(draft.output),
        draft.nonce.strip(),
        draft.edge,
        draft.expect,
        "; ".join(draft.notes),
        _exact(draft, dialect),
        draft.image_names,
        draft.videos,
    )


def _exact(draft: Draft, dialect: Dialect | None) -> int | None:
    """The tokens of all answers together, where the dialect has the means to ask for them."""
    if draft.output.exact is None or dialect is None or not dialect.exact_output:
        return None
    several = draft.extra.get("n", 1)
    return draft.output.exact * (several if isinstance(several, int) else 1)


def _body(draft: Draft, step: Step, facts: Facts) -> bytes:
    """One join of bytes: images are in base64 already, and no JSON library ever sees them."""
    text = orjson.dumps(draft.text)
    head = b'{"model":' + _quoted(draft.model or facts.model) + b',"messages":['
    content = [b"[", *draft.pieces, b'{"type":"text","text":', text, b"}]"] if draft.pieces else [text]
    tail = _tail(draft, step, facts)
    return b"".join((head, *draft.history, b'{"role":"user","content":', *content, b"}]", tail, b"}"))


@functools.lru_cache(maxsize=64)
def _quoted(model: str) -> bytes:
    return orjson.dumps(model)


def _tail(draft: Draft, step: Step, facts: Facts) -> bytes:
    seed = step.seed & 0x7FFFFFFF
    asked = _asked(draft.output), draft.output.exact is not None, step.stream, facts.dialect
    if not draft.extra:
        return _known_tail(*asked) % seed
    return b"," + orjson.dumps({**_options(*asked, seed), **draft.extra})[1:-1]


@functools.lru_cache(maxsize=1024)
def _known_tail(count: int, exact: bool, stream: bool, dialect: str) -> bytes:
    """With room for the seed, which is all that differs from request to request in most traffic."""
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
