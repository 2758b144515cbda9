"""Build a step's request.

Let payloads add, fit lengths, join one JSON body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadchaos.core.model import Facts, Request, Step
from loadchaos.core.rng import Rng, hash64
from loadchaos.load import endpoints
from loadchaos.load.payloads import secret_word
from loadchaos.load.payloads.base import Draft, Payload, output_tokens
from loadchaos.load.payloads.text import write_prompt
from loadchaos.server.dialects import DIALECTS

_MIN_PROMPT_TOKENS = 16
_NO_LIMIT = 1 << 62
_MOST_ADAPTED = 16


def build(step: Step, facts: Facts, payloads: Mapping[str, Payload]) -> Request:
    """Build a request. Pure: equal step and facts give equal bytes."""
    if step.endpoint != endpoints.DEFAULT:
        facts = _facts_at(step.endpoint, facts)
    owner = secret_word.of_request(step.index)
    draft = Draft(step.output, step.expect, owner=owner, secret=secret_word.encode(owner, step.run_seed))
    rng = Rng(hash64(step.seed, 7))
    names = step.payload if len(step.payload) < 2 else sorted(step.payload, key=lambda n: payloads[n].ORDER)
    for name in names:
        payloads[name].add(draft, step.payload[name], step, facts, rng)
    if draft.request is not None:
        endpoint = endpoints.endpoint_of_path(draft.request.path)
        return replace(draft.request, expect=draft.expect, fitted="; ".join(draft.notes), endpoint=endpoint)
    if draft.text is None:
        write_prompt(draft, facts, _MIN_PROMPT_TOKENS + (facts.text.overhead if facts.text else 0), rng)
    # A step that expects a refusal means to send too much.
    if not draft.fixed_length and "rejected" not in step.expect:
        _fit(draft, facts, rng, generates=endpoints.ENDPOINTS[step.endpoint].generates)
    return _request(draft, step, facts)


_adapted: dict[tuple[int, str], tuple[Facts, Facts]] = {}
"""Facts as they hold at an endpoint; keyed by identity, as hashing facts would cost more than a request."""


def _facts_at(name: str, facts: Facts) -> Facts:
    """Copy the facts with the tokens that an endpoint adds to a text."""
    found = _adapted.get((id(facts), name))
    if found is None:
        if len(_adapted) >= _MOST_ADAPTED:
            _adapted.clear()
        adds = facts.endpoints.get(name)
        text = facts.text
        adapted = facts if text is None or adds is None else replace(facts, text=replace(text, overhead=adds[1]))
        found = _adapted[id(facts), name] = facts, adapted
    return found[1]


def _fit(draft: Draft, facts: Facts, rng: Rng, *, generates: bool) -> None:
    """Cut the output, then the text, to fit the context and the KV cache."""
    if draft.text_tokens is None:
        return
    sequence = min(facts.max_model_len or _NO_LIMIT, facts.capacity_tokens or _NO_LIMIT)
    dialect = DIALECTS.get(facts.dialect)
    if facts.input_limit is not None and dialect is not None and not dialect.context_fits:
        # One bound holds for prompt and answer together (LMDeploy's `max_session_len`); answers are cut silently.
        sequence = min(sequence, facts.input_limit + dialect.answer_beyond_prompt)
    limit = min(sequence - generates, _NO_LIMIT if facts.input_limit is None else facts.input_limit)
    overhead = facts.text.overhead if facts.text else 0
    shortest = overhead + draft.history_tokens + draft.image_tokens + _MIN_PROMPT_TOKENS
    prompt_tokens = draft.text_tokens + draft.image_tokens
    if prompt_tokens > limit >= shortest:
        allowed = limit - draft.image_tokens
        draft.notes.append(f"{allowed} tokens of text instead of {draft.text_tokens}: the server's limit")
        write_prompt(draft, facts, allowed, rng)
        prompt_tokens = allowed + draft.image_tokens
    if generates and prompt_tokens + output_tokens(draft.output) > sequence > prompt_tokens:
        remaining = sequence - prompt_tokens
        draft.notes.append(f"{remaining} tokens of output instead of {output_tokens(draft.output)}: the server's limit")
        draft.output = replace(draft.output, **{"exact" if draft.output.exact else "max": remaining})


def _request(draft: Draft, step: Step, facts: Facts) -> Request:
    dialect, endpoint = DIALECTS.get(facts.dialect), endpoints.ENDPOINTS[step.endpoint]
    exact = _exact(draft) if endpoint.generates else None
    askable = dialect is not None and endpoint.can_ask_exact(dialect.exact_output)
    length_known = draft.text_tokens is not None and draft.image_tokens_known and draft.length_known
    tokens = (draft.text_tokens or 0) + draft.image_tokens if length_known else None
    if step.endpoint != endpoints.DEFAULT and tokens is not None:
        adds = facts.endpoints.get(step.endpoint)
        tokens = None if adds is None else tokens + adds[0]
    return Request(
        step,
        endpoints.path_at(step.endpoint, facts.dialect),
        endpoint.body(draft, step, facts),
        step.stream,
        tokens,
        draft.images,
        draft.image_tokens,
        output_tokens(draft.output) if endpoint.generates else None,
        draft.nonce.strip(),
        draft.edge,
        draft.expect,
        "; ".join(draft.notes),
        exact if askable else None,
        draft.image_names,
        draft.videos,
        None if askable else exact,
        draft.image_file,
        draft.owner if draft.secret_sent or draft.history else None,
        draft.contract,
        _answers(draft) if endpoint.generates else draft.results,
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
    answers = draft.extra.get("n", 1)
    return answers if isinstance(answers, int) else 1
