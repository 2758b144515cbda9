"""Multi-turn conversations: each request carries all earlier turns.

With `answers: made_up` the server's own answers are not in it. A step is built before it is sent, by any worker, so the
assistant's messages are made up, and equal in every turn. The prefix cache therefore hits on all but the newest question.
With `answers: live` a step is a whole session (live.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.model import Facts, TextFacts
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.payloads import live, secret_word
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.text import corpus_for, write_prompt
from loadchaos.load.sequence_limits import sequence_limits
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import RequestContent, SessionContent

_CACHED_MESSAGES = 512
_MOST_TURNS = 1000


_LIVE_ONLY = ("question", "think", "system", "branches", "tool_rounds", "tool_result")
_MADE_UP_ONLY = ("parallel", "previous_response")
_LIVE_PAYLOADS = ("conversation", "tools", "sampling", "structured")


class Options(Payload):
    """Number of `turns` and `tokens` of the last prompt of a conversation.

    `tokens` includes the template and all earlier turns. `parallel` conversations go on at a time: request n of this
    traffic belongs to conversation n modulo `parallel`. `parallel` should be at least the number of this traffic's requests
    in flight, or a turn is sent before the previous one was answered. `previous_response` (endpoint `responses`) sends only
    the newest question and the id of the response before it. We choose the ids, which vLLM allows; it keeps responses with
    VLLM_ENABLE_RESPONSES_API_STORE=1.

    With `answers: live` each step is a session of `turns` questions: one user sends them one after the other, each with the
    server's own answers before it. `tokens` is then the most that a prompt has: a session ends before a longer one. Beside
    the payload `tools`, a tool call of an answer gets a generated result of `tool_result` tokens as a `tool` message; after
    `tool_rounds` of these the model has to answer without a tool.
    """

    ORDER: ClassVar[int] = 12
    ignores: ClassVar[frozenset[str] | None] = frozenset({"text", "near_limit"})
    writes_turns: ClassVar[bool] = True
    turns: Annotated[IntRange, at_least(1, f"1 to {_MOST_TURNS:,} turns were expected", most=_MOST_TURNS)] = Range(8, 8)
    tokens: Annotated[IntRange, at_least(1, "a conversation has at least 1 token")] = Range(2048, 2048)
    parallel: int = Field(default=16, gt=0)
    previous_response: bool = False
    answers: Literal["made_up", "live"] = "made_up"
    question: Annotated[IntRange, at_least(1, "a length of at least 1 token was expected")] = Range(32, 128)
    think: live.Think | None = None
    system: live.SystemPrompt | None = None
    branches: live.Branches | None = None
    tool_rounds: int = Field(default=4, gt=0, le=100)
    tool_result: Annotated[IntRange, at_least(1, "a length of at least 1 token was expected")] = Range(32, 128)
    history: live.History | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _turns_fit(self) -> Options:
        others = _MADE_UP_ONLY if self.is_live else _LIVE_ONLY
        for name in sorted(self.model_fields_set & set(others)):
            needed = "made_up" if self.is_live else "live"
            raise ValueError(f"{name} goes with answers: {needed} (got answers: {self.answers})")
        if self.is_live:
            if self.branches is not None and self.branches.after >= self.turns.high:
                raise ValueError(
                    f"branches.after has to be less than the turns, of which there are at most {self.turns.high} "
                    f"(got {self.branches.after})"
                )
            return self
        if self.turns.low != self.turns.high:
            raise ValueError(f"a range of turns goes with answers: live; one number was expected (got {self.turns})")
        if self.tokens.low < 2 * self.turns.low - 1:
            raise ValueError(
                f"{self.turns} turns have {2 * self.turns.low - 1} messages of a token or more: "
                f"tokens of at least that were expected (got {self.tokens})"
            )
        return self

    @property
    def is_live(self) -> bool:
        return self.answers == "live"

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of a prompt of a session; None: the server's limit."""
        return self.tokens.high if "tokens" in self.model_fields_set else None

    def refusals(
        self, payloads: Collection[str], behaviours: Collection[str], endpoint: str
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        if not self.is_live:
            return
        if endpoint != "chat":
            yield ("endpoint",), f"conversations with answers: live go with endpoint: chat (got {endpoint})"
        for name in payloads:
            if name not in (*_LIVE_PAYLOADS, "text", "near_limit"):
                others = ", ".join(_LIVE_PAYLOADS[1:])
                yield ("payload", name), f"a conversation with answers: live takes only {others} beside it"
        for name in behaviours:
            if name == "pipeline":
                yield ("behaviour", name), "a conversation with answers: live waits for each answer: it cannot pipeline"
        if "tools" not in payloads:
            for name in sorted(self.model_fields_set & {"tool_rounds", "tool_result"}):
                yield (
                    ("payload", "conversation", name),
                    "has no effect without the payload tools, e.g. tools: {count: 2}",
                )

    def place(self, ordinal: int) -> tuple[int, int]:
        group, within = divmod(ordinal, self.turns.low * self.parallel)
        return group * self.parallel + within % self.parallel, within // self.parallel

    def warning(self, in_flight: float, requests: float | None) -> str | None:  # noqa: ARG002 - it is a matter of users
        if self.is_live or in_flight <= self.parallel:
            return None
        conversations = "1 conversation runs" if self.parallel == 1 else f"{self.parallel} conversations run"
        return (
            f"up to {math.ceil(in_flight)} requests are in flight, but only {conversations} at a time: a "
            f"turn may be sent before the previous one is answered; use parallel: {math.ceil(in_flight)}"
        )

    def describe(self) -> str:
        if self.is_live:
            return "; ".join(self._describe_session())
        return f"conversations of {self.turns} turns that grow to {self.tokens} tokens, {self.parallel} at a time"

    @property
    def longest_text(self) -> int:
        return self.tokens.high

    def per_request(self) -> RequestContent:
        if self.is_live:
            return RequestContent()  # how long the answers are is not known
        last, turns = self.tokens.mean, self.turns.low
        return RequestContent(tokens=last * (turns + 1) / (2 * turns))

    def per_session(self, payloads: Collection[str]) -> SessionContent | None:
        return live.per_session(self, self.tool_rounds if "tools" in payloads else 0) if self.is_live else None

    def _describe_session(self) -> Iterator[str]:
        yield f"sessions of {self.turns} questions of {self.question} tokens, each with the server's own answers before it"
        if self.system is not None:
            shared = "one for all" if self.system.different == 1 else f"{self.system.different} different ones"
            yield f"a system prompt of {self.system.tokens} tokens, {shared}"
        if self.think is not None:
            yield f"time between answer and question: {self.think.describe()}"
        if self.branches is not None:
            after = "1 question" if self.branches.after == 1 else f"{self.branches.after} questions"
            yield f"{self.branches.count} continuations after {after}"
        if self.most_tokens is not None:
            yield f"prompts of at most {self.most_tokens} tokens"

    def add(self, request: Request, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG002 - drawn by conversation, not by step
        if self.is_live:
            live.add(request, facts)
            return
        step = request.step
        number, turn_number = self.place(step.ordinal)
        seed = draws.hash64(step.run_seed, step.phase, draws.text_seed(step.traffic), 11, number)
        overhead = facts.text.overhead if facts.text else 0
        each = facts.text.turn_overhead if facts.text else None
        last = _limit_tokens(
            draws.Rng(seed).between(self.tokens.low, self.tokens.high), request, facts, self.tokens.low
        )
        sizes = _sizes(last - overhead - (self.turns.low - 1) * (each or 0), self.turns.low)
        request.owner = secret_word.of_conversation(draws.text_seed(step.traffic), step.phase, number)
        request.secret = secret_word.encode(request.owner, step.run_seed)
        request.history = [
            _message(facts.text, seed, i, size, request.secret) for i, size in enumerate(sizes[: 2 * turn_number])
        ]
        request.history_tokens = sum(sizes[: 2 * turn_number]) + turn_number * (each or 0)
        request.text_style, request.script = None, "latin"
        own = draws.Rng(draws.hash64(seed, 2 * turn_number))
        write_prompt(request, facts, overhead + request.history_tokens + sizes[2 * turn_number], own)
        if self.previous_response:
            _name_responses(request, turn_number)
        elif turn_number and each is None:
            request.length_known = False  # what the template puts between turns is not known here


def _name_responses(request: Request, turn: int) -> None:
    name = f"resp_lc{request.step.run_seed & 0xFFFFFFFF:x}-{request.owner or 0:x}"
    request.extra["request_id"] = f"{name}-{turn}"
    request.history, request.history_tokens = [], 0
    if turn:
        request.extra["previous_response_id"] = f"{name}-{turn - 1}"
        request.length_known = False  # the server's own answers are in the prompt
        request.secret_sent = True  # in an earlier turn
        if "rejected" not in request.expect:  # the response before may have failed, or may not be complete yet
            request.expect.append("rejected")


def _limit_tokens(wanted: int, request: Request, facts: Facts, least: int) -> int:
    available = sequence_limits(facts).prompt - request.image_tokens
    if available < wanted:
        why = "the server's limit"
        request.adapt(f"a conversation of {available} tokens", str(wanted), why, allowed=available >= least)
    return min(available, wanted)


@functools.lru_cache(maxsize=256)
def _sizes(tokens: int, turns: int) -> tuple[int, ...]:
    """Tokens of each message, as equal as possible and at least 1 each."""
    messages = 2 * turns - 1
    least, more = divmod(max(tokens, messages), messages)
    return tuple(least + (i >= messages - more) for i in range(messages))


@functools.lru_cache(maxsize=_CACHED_MESSAGES)
def _message(known: TextFacts | None, seed: int, index: int, tokens: int, secret: int) -> bytes:
    """Build an earlier message as JSON. A question as it was sent, or a made-up answer."""
    own = draws.Rng(draws.hash64(seed, index))
    corpus = corpus_for(known)
    opening, used, _ = corpus.make_nonce(tokens, secret, own) if index % 2 == 0 else ("", 0, False)
    text = opening + corpus.text_of(tokens - used, own)
    return live.message(role="assistant" if index % 2 else "user", content=text)
