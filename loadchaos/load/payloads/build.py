"""Build a step's request.

Let payloads add, fit lengths, join one JSON body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadchaos.core.model import Facts, Request, Step
from loadchaos.core.rng import Rng, hash_step
from loadchaos.load import endpoints
from loadchaos.load.payloads import secret_word
from loadchaos.load.payloads.base import SHORTEST_TEXT_TOKENS, Draft, Payload, output_tokens
from loadchaos.load.payloads.text import write_prompt
from loadchaos.server.dialects import DIALECTS

_NO_LIMIT = 1 << 62
_MOST_SERVERS = 16


def build(step: Step, facts: Facts, payloads: Mapping[str, Payload]) -> Request:
    """Build a request. Pure: equal step and facts give equal bytes."""
    server = _server_at(step.endpoint, facts)
    facts = server.facts
    owner = secret_word.of_request(step.index)
    draft = Draft(step.output, step.expect, owner=owner, secret=secret_word.encode(owner, step.run_seed))
    rng = Rng(hash_step(step.seed, 7))
    names = step.payload if len(step.payload) < 2 else sorted(step.payload, key=lambda n: payloads[n].ORDER)
    for name in names:
        payloads[name].add(draft, step.payload[name], step, facts, rng)
    if draft.request is not None:
        endpoint = endpoints.endpoint_of_path(draft.request.path)
        return replace(draft.request, expect=draft.expect, fitted="; ".join(draft.notes), endpoint=endpoint)
    if draft.text is None:
        write_prompt(draft, facts, SHORTEST_TEXT_TOKENS + (facts.text.overhead if facts.text else 0), rng)
    # A step that expects a refusal means to send too much.
    if not draft.fixed_length and "rejected" not in step.expect:
        _fit(draft, server, rng)
    return _request(draft, step, server)


class _Server:
    """Limits and path that all requests to one endpoint share.

    Attributes:
        given: the server's facts.
        facts: the same with the tokens that the endpoint adds to a text.
        adds: tokens that the endpoint adds to a request; None: unknown.
        askable: a body can ask for an exact length of the answer.
        sequence: most tokens of prompt and answer together; `limit` is that of the prompt.
    """

    __slots__ = ("adds", "askable", "endpoint", "facts", "generates", "given", "limit", "path", "sequence")

    def __init__(self, name: str, facts: Facts) -> None:
        self.given = self.facts = facts
        self.endpoint = endpoints.ENDPOINTS[name]
        self.generates = self.endpoint.generates
        self.path = endpoints.path_at(name, facts.dialect)
        self.adds: int | None = 0
        if name != endpoints.DEFAULT:
            adds, text = facts.endpoints.get(name), facts.text
            self.adds = None if adds is None else adds[0]
            if text is not None and adds is not None:
                self.facts = replace(facts, text=replace(text, overhead=adds[1]))
        dialect = DIALECTS.get(facts.dialect)
        self.askable = dialect is not None and self.endpoint.can_ask_exact(dialect.exact_output)
        sequence = min(facts.max_model_len or _NO_LIMIT, facts.capacity_tokens or _NO_LIMIT)
        if facts.input_limit is not None and dialect is not None and not dialect.context_fits:
            # One bound holds for prompt and answer together (LMDeploy's `max_session_len`); answers are cut silently.
            sequence = min(sequence, facts.input_limit + dialect.answer_beyond_prompt)
        self.sequence = sequence
        self.limit = min(sequence - self.generates, _NO_LIMIT if facts.input_limit is None else facts.input_limit)


_servers: dict[tuple[int, str], _Server] = {}
"""Keyed by identity, as hashing facts would cost more than a request; each keeps its facts, so that no id is used again."""


def _server_at(name: str, facts: Facts) -> _Server:
    found = _servers.get((id(facts), name))
    if found is None:
        if len(_servers) >= _MOST_SERVERS:
            _servers.clear()
        found = _servers[id(facts), name] = _Server(name, facts)
    return found


def _fit(draft: Draft, server: _Server, rng: Rng) -> None:
    """Cut the output, then the text, to fit the context and the KV cache."""
    if draft.text_tokens is None:
        return
    facts, limit, sequence, generates = server.facts, server.limit, server.sequence, server.generates
    prompt_tokens = draft.text_tokens + draft.image_tokens
    if prompt_tokens <= limit and prompt_tokens + output_tokens(draft.output) <= sequence:
        return
    overhead = facts.text.overhead if facts.text else 0
    shortest = overhead + draft.history_tokens + draft.image_tokens + SHORTEST_TEXT_TOKENS
    if prompt_tokens > limit >= shortest:
        allowed = limit - draft.image_tokens
        draft.notes.append(f"{allowed} tokens of text instead of {draft.text_tokens}: the server's limit")
        write_prompt(draft, facts, allowed, rng)
        prompt_tokens = allowed + draft.image_tokens
    if generates and prompt_tokens + output_tokens(draft.output) > sequence > prompt_tokens:
        remaining = sequence - prompt_tokens
        draft.notes.append(f"{remaining} tokens of output instead of {output_tokens(draft.output)}: the server's limit")
        draft.output = replace(draft.output, **{"exact" if draft.output.exact else "max": remaining})


def _request(draft: Draft, step: Step, server: _Server) -> Request:
    generates, askable = server.generates, server.askable
    exact = _exact(draft) if generates and draft.output.exact is not None else None
    tokens = None
    if draft.text_tokens is not None and draft.image_tokens_known and draft.length_known and server.adds is not None:
        tokens = draft.text_tokens + draft.image_tokens + server.adds
    return Request(
        step,
        server.path,
        server.endpoint.body(draft, step, server.facts),
        step.stream,
        tokens,
        draft.images,
        draft.image_tokens,
        output_tokens(draft.output) if generates else None,
        draft.nonce.strip(),
        draft.edge,
        draft.expect,
        "; ".join(draft.notes) if draft.notes else "",
        exact if askable else None,
        draft.image_names,
        draft.videos,
        None if askable else exact,
        draft.image_file,
        draft.owner if draft.secret_sent or draft.history else None,
        draft.contract,
        _answers(draft) if generates else draft.results,
        step.endpoint,
        len(draft.audio),
    )


def _exact(draft: Draft) -> int | None:
    """Tokens of all answers together; None without `output: {exact}`."""
    if draft.output.exact is None:
        return None
    return draft.output.exact * _answers(draft)


def _answers(draft: Draft) -> int:
    """Return the choices that a request asks for."""
    answers = draft.extra.get("n", 1) if draft.extra else 1
    return answers if isinstance(answers, int) else 1
