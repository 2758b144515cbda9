"""Build the request of a step: its payloads add to it, it is fitted to the server, and its endpoint writes the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadchaos.core.model import Facts, Step
from loadchaos.core.rng import Rng, hash_step
from loadchaos.load import endpoints
from loadchaos.load.payloads import Payload, secret_word
from loadchaos.load.payloads.text import SHORTEST_TEXT_TOKENS, write_prompt
from loadchaos.load.payloads.text import Options as TextOptions
from loadchaos.load.sequence_limits import sequence_limits
from loadchaos.load.wire.request import Request
from loadchaos.server.dialects import DIALECTS

_MOST_SERVERS = 16
_LIMIT = "the server's limit"


def build(step: Step, facts: Facts) -> Request:
    """Build the request of a step for this server. Pure: equal arguments give equal bytes."""
    server = _server_at(step.endpoint, facts)
    facts = server.facts
    owner = secret_word.of_request(step.index)
    request = Request(
        step=step,
        output=step.output,
        expect=[*step.expect],
        stream=step.stream,
        path=step.path or server.path,
        endpoint=step.endpoint,
        owner=owner,
        secret=secret_word.encode(owner, step.run_seed),
    )
    rng = Rng(hash_step(step.seed, 7))
    given: Sequence[Payload] = [*step.payload.values()]
    for payload in given if len(given) < 2 else sorted(given, key=lambda one: one.ORDER):
        payload.add(request, facts, rng)
    if request.body:  # of a payload that sets the whole request
        request.path = facts.api.path(request.path)
        request.endpoint, request.owner = endpoints.endpoint_of_path(request.path), None
        return request
    if request.text is None:
        write_prompt(request, facts, SHORTEST_TEXT_TOKENS + (facts.text.overhead if facts.text else 0), rng)
    # A step that expects a refusal means to send too much.
    if not request.fixed_length and "rejected" not in step.expect:
        _fit(request, server, rng)
    _complete(request, server)
    return request


class _Server:
    """Limits and path that all requests to one endpoint share. `facts` are those `given` with the tokens that the endpoint
    adds to a text, `adds` those that it adds to a request (None: unknown). `askable`: a body can ask for an exact length of
    the answer.
    """

    __slots__ = ("adds", "askable", "endpoint", "facts", "generates", "given", "limits", "path")

    def __init__(self, name: str, facts: Facts) -> None:
        self.given = self.facts = facts
        self.endpoint = endpoints.ENDPOINTS[name]
        self.generates = self.endpoint.generates
        self.path = facts.api.path(endpoints.path_at(name, facts.dialect))
        self.adds: int | None = 0
        if name != endpoints.DEFAULT:
            adds, text = facts.endpoints.get(name), facts.text
            self.adds = None if adds is None else adds[0]
            if text is not None and adds is not None:
                self.facts = replace(facts, text=replace(text, overhead=adds[1]))
        dialect = DIALECTS.get(facts.dialect)
        self.askable = dialect is not None and self.endpoint.can_ask_exact(dialect.exact_output)
        self.limits = sequence_limits(facts, shortest_answer=int(self.generates))


_servers: dict[tuple[int, str], _Server] = {}
"""Keyed by identity, as hashing facts would cost more than a request; each keeps its facts, so that no id is used again."""


def _server_at(name: str, facts: Facts) -> _Server:
    found = _servers.get((id(facts), name))
    if found is None:
        if len(_servers) >= _MOST_SERVERS:
            _servers.clear()
        found = _servers[id(facts), name] = _Server(name, facts)
    return found


def _fit(request: Request, server: _Server, rng: Rng) -> None:
    """Cut the output, then the text, to fit the context and the KV cache."""
    if request.text_tokens is None:
        return
    facts, limit, whole = server.facts, server.limits.prompt, server.limits.whole
    prompt_tokens = request.text_tokens + request.image_tokens
    if prompt_tokens <= limit and prompt_tokens + request.output_tokens <= whole:
        return
    overhead = facts.text.overhead if facts.text else 0
    shortest = overhead + request.history_tokens + request.image_tokens + SHORTEST_TEXT_TOKENS
    if prompt_tokens > limit >= shortest:
        allowed = limit - request.image_tokens
        asked = text.tokens if isinstance(text := request.step.payload.get("text"), TextOptions) else None
        least = asked.low if asked is not None else allowed + 1
        request.adapt(f"{allowed} tokens of text", str(request.text_tokens), _LIMIT, allowed=allowed >= least)
        write_prompt(request, facts, allowed, rng)
        prompt_tokens = allowed + request.image_tokens
    if server.generates and prompt_tokens + request.output_tokens > whole > prompt_tokens:
        remaining = whole - prompt_tokens
        is_limit = request.output.exact is None  # no answer has to be that long
        request.adapt(f"{remaining} tokens of output", str(request.output_tokens), _LIMIT, allowed=is_limit)
        request.output = replace(request.output, **{"exact" if request.output.exact else "max": remaining})


def _complete(request: Request, server: _Server) -> None:
    """Write the body, state what the server should count, and free what only the body needed."""
    request.model = request.model or server.facts.model
    request.body = server.endpoint.body(request, server.facts)
    if request.more_fields:
        request.body = request.body.removesuffix(b"}") + b"," + request.more_fields[1:]
    if server.generates:
        answers = request.extra.get("n", 1)
        request.max_tokens, request.answers = request.output_tokens, answers if isinstance(answers, int) else 1
        if request.output.exact is not None:
            exact = request.output.exact * request.answers
            request.exact, request.most = (exact, None) if server.askable else (None, exact)
    elif request.answers is None:
        request.answers = 1
    known = request.image_tokens_known and request.length_known and server.adds is not None
    if known and request.text_tokens is not None:
        request.tokens = request.text_tokens + request.image_tokens + (server.adds or 0)
    if request.tokens is None and request.length_known and not (request.parts or request.history or request.more_texts):
        request.asked = request.wanted_tokens
    if not request.secret_sent and not request.history:
        request.owner = None
    request.nonce = request.nonce.strip()
    if request.more_texts:
        request.texts_differ = len({request.text, *request.more_texts}) > len(request.more_texts)
    request.text = None
    if request.parts or request.history or request.more_texts:
        request.parts, request.history, request.more_texts, request.audio_files = [], [], [], []
