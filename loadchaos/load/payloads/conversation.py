"""Multi-turn conversations: each request carries all earlier turns.

The server's own answers are not in it. A step is built before it is sent, by any worker, so the assistant's messages are
made up, and equal in every turn. The prefix cache therefore hits on all but the newest question.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.model import Facts, Step, TextFacts
from loadchaos.core.units import IntRange, Range
from loadchaos.load.payloads import secret_word
from loadchaos.load.payloads.base import Draft
from loadchaos.load.payloads.text import corpus_for, write_prompt

ORDER = 12
_CACHED_MESSAGES = 512


class Options(BaseModel):
    """Number of `turns` and `tokens` of the last prompt of a conversation.

    `tokens` includes the template and all earlier turns. `parallel` conversations go on at a time: request n of this
    traffic belongs to conversation n modulo `parallel`. `parallel` should be at least the number of this traffic's requests
    in flight, or a turn is sent before the previous one was answered. `previous_response` (endpoint `responses`) sends only
    the newest question and the id of the response before it. We choose the ids, which vLLM allows; it keeps responses with
    VLLM_ENABLE_RESPONSES_API_STORE=1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: int = Field(default=8, gt=0, le=1000)
    tokens: IntRange = Range(2048, 2048)
    parallel: int = Field(default=16, gt=0)
    previous_response: bool = False

    @field_validator("tokens")
    @classmethod
    def _at_least_one_token(cls, value: Range) -> Range:
        if value.low < 1:
            raise ValueError(f"a conversation has at least 1 token (got {value})")
        return value

    @model_validator(mode="after")
    def _turns_fit(self) -> Options:
        if self.tokens.low < 2 * self.turns - 1:
            raise ValueError(
                f"{self.turns} turns have {2 * self.turns - 1} messages of a token or more: "
                f"tokens of at least that were expected (got {self.tokens})"
            )
        return self

    @classmethod
    def ignored_payloads(cls, names: Iterable[str]) -> list[str]:
        """Payloads that would also write the prompt."""
        return [name for name in names if name in ("text", "near_limit")]

    def place(self, ordinal: int) -> tuple[int, int]:
        """Return (conversation, turn from 0) of a request."""
        group, within = divmod(ordinal, self.turns * self.parallel)
        return group * self.parallel + within % self.parallel, within // self.parallel

    def warning(self, in_flight: float, requests: float | None) -> str | None:  # noqa: ARG002 - it is a matter of users
        """Warn if there are more requests in flight than conversations."""
        if in_flight <= self.parallel:
            return None
        conversations = "1 conversation runs" if self.parallel == 1 else f"{self.parallel} conversations run"
        return (
            f"up to {math.ceil(in_flight)} requests are in flight, but only {conversations} at a time: a "
            f"turn may be sent before the previous one is answered; use parallel: {math.ceil(in_flight)}"
        )

    def describe(self) -> str:
        """Describe the payload, for `explain`."""
        return f"conversations of {self.turns} turns that grow to {self.tokens} tokens, {self.parallel} at a time"

    def per_request(self) -> dict[str, float]:
        """Average content of a request for `explain`."""
        last = (self.tokens.low + self.tokens.high) / 2
        return {"tokens": last * (self.turns + 1) / (2 * self.turns)}


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG001 - drawn by conversation, not by step
    """Put the earlier turns in front and set the newest question."""
    assert isinstance(options, Options)
    number, turn_number = options.place(step.ordinal)
    seed = draws.hash64(step.run_seed, step.phase, draws.text_seed(step.traffic), 11, number)
    overhead = facts.text.overhead if facts.text else 0
    each = facts.text.turn_overhead if facts.text else None
    last = _limit_tokens(draws.Rng(seed).between(options.tokens.low, options.tokens.high), draft, facts)
    sizes = _sizes(last - overhead - (options.turns - 1) * (each or 0), options.turns)
    draft.owner = secret_word.of_conversation(draws.text_seed(step.traffic), step.phase, number)
    draft.secret = secret_word.encode(draft.owner, step.run_seed)
    draft.history = [
        _message(facts.text, seed, i, size, draft.secret) for i, size in enumerate(sizes[: 2 * turn_number])
    ]
    draft.history_tokens = sum(sizes[: 2 * turn_number]) + turn_number * (each or 0)
    draft.text_style = None
    own = draws.Rng(draws.hash64(seed, 2 * turn_number))
    write_prompt(draft, facts, overhead + draft.history_tokens + sizes[2 * turn_number], own)
    if options.previous_response:
        _name_responses(draft, step, turn_number)
    elif turn_number and each is None:
        draft.length_known = False  # what the template puts between turns is not known here


def _name_responses(draft: Draft, step: Step, turn: int) -> None:
    """Name the response, and the one before it in place of earlier messages."""
    name = f"resp_lc{step.run_seed & 0xFFFFFFFF:x}-{draft.owner or 0:x}"
    draft.extra["request_id"] = f"{name}-{turn}"
    draft.history, draft.history_tokens = [], 0
    if turn:
        draft.extra["previous_response_id"] = f"{name}-{turn - 1}"
        draft.length_known = False  # the server's own answers are in the prompt
        draft.secret_sent = True  # in an earlier turn
        if "rejected" not in draft.expect:
            draft.expect = (
                *draft.expect,
                "rejected",
            )  # the response before may have failed, or may not be complete yet


def _limit_tokens(wanted: int, draft: Draft, facts: Facts) -> int:
    limits = [n - 1 for n in (facts.max_model_len, facts.capacity_tokens) if n is not None]
    limits += [facts.input_limit] if facts.input_limit is not None else []
    available = min(limits, default=wanted + draft.image_tokens) - draft.image_tokens
    if available < wanted:
        draft.notes.append(f"a conversation of {available} tokens instead of {wanted}: the server's limit")
    return min(available, wanted)


@functools.lru_cache(maxsize=256)
def _sizes(tokens: int, turns: int) -> tuple[int, ...]:
    """Tokens of each message, as equal as possible and at least 1 each."""
    messages = 2 * turns - 1
    least, more = divmod(max(tokens, messages), messages)
    return tuple(least + (i >= messages - more) for i in range(messages))


@functools.lru_cache(maxsize=_CACHED_MESSAGES)
def _message(known: TextFacts | None, seed: int, index: int, tokens: int, secret: int) -> bytes:
    """Build an earlier message as JSON.

    A question as it was sent, or a made-up answer.
    """
    own = draws.Rng(draws.hash64(seed, index))
    corpus = corpus_for(known)
    opening, used, _ = corpus.make_nonce(tokens, secret, own) if index % 2 == 0 else ("", 0, False)
    text = opening + corpus.text_of(tokens - used, own)
    return orjson.dumps({"role": "assistant" if index % 2 else "user", "content": text}) + b","
