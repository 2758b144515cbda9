"""Turns of a conversation whose answers are fed back.

Pure: a request follows from its step, the facts and the answers before it, so that a recorded one can be built again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson
from pydantic import Field, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.ledger.rows import AnswerRow, CallText
from loadchaos.core.model import Facts, Step
from loadchaos.core.session_ids import place_of, suffix
from loadchaos.core.unit_fields import DurationS
from loadchaos.core.units import Range, describe_duration
from loadchaos.load.payloads import secret_word, tools
from loadchaos.load.payloads.text import corpus_for
from loadchaos.load.sequence_limits import sequence_limits
from loadchaos.load.wire.contract import AnswerContract, ToolCall
from loadchaos.load.wire.request import Request
from loadchaos.profile.base import ProfilePart
from loadchaos.profile.request_options import SessionContent

if TYPE_CHECKING:
    from loadchaos.load.payloads.conversation import Options as LiveOptions

_TURNS, _QUESTION, _RESULT, _THINK, _SYSTEM = range(101, 106)
"""Kinds of draws of a session; each has numbers of its own."""
_TEMPLATE_TOKENS = 16
"""Tokens that a template may add to a message, estimated from above, where a prompt must not exceed a limit."""
_TOOL_ORDER_TOKENS = 256
"""Tokens of the order to call tools that a template writes beside their definitions, estimated from above."""
_TOKENS_PER_JSON_BYTE = 0.5
_MERGED_TOKENS = 2
"""Tokens of a message that may merge with its template."""


class SystemPrompt(ProfilePart):
    """A system prompt of `tokens`; there are `different` ones.

    Sessions take turns with them, so that those with the same one share its part of the prefix cache.
    """

    tokens: int = Field(gt=0)
    different: int = Field(default=1, gt=0)


class Branches(ProfilePart):
    """Several continuations of one history, at the same time.

    It is the history after `after` questions.
    """

    count: int = Field(gt=1, le=64)
    after: int = Field(default=1, gt=0)


class Think(ProfilePart):
    """Time between an answer and the next question.

    `law` spreads it around `mean`: `lognormal` with the standard deviation `sigma` of its logarithm. `most` cuts it.
    A duration instead of these keys is constant.
    """

    mean: DurationS = Field(ge=0)
    law: Literal["constant", "uniform", "exponential", "lognormal"] = "exponential"
    sigma: float = Field(default=1.0, gt=0, le=4)
    most: DurationS | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _read_constant(cls, value: Any) -> Any:
        if isinstance(value, Mapping | Think):
            return value
        return {"mean": value, "law": "constant"}

    @model_validator(mode="after")
    def _sigma_has_effect(self) -> Think:
        if "sigma" in self.model_fields_set and self.law != "lognormal":
            raise ValueError(f"sigma has no effect with the law {self.law}: it belongs to lognormal")
        return self

    def draw_s(self, rng: draws.Rng) -> float:
        share = rng.share()
        if self.law == "uniform":
            seconds = 2 * self.mean * share
        elif self.law == "exponential":
            seconds = -self.mean * math.log(1 - share)
        elif self.law == "lognormal":
            normal = math.sqrt(-2 * math.log(1 - share)) * math.cos(2 * math.pi * rng.share())
            seconds = self.mean * math.exp(self.sigma * normal - self.sigma**2 / 2)
        else:
            seconds = self.mean
        return seconds if self.most is None else min(seconds, self.most)

    def describe(self) -> str:
        most = "" if self.most is None else f", at most {describe_duration(self.most)}"
        return f"{describe_duration(self.mean)} ({self.law}{most})"


class SentBack(NamedTuple):
    """Answer of the server, as the next request repeats it."""

    text: str
    calls: tuple[ToolCall, ...] = ()

    def calls_json(self) -> list[CallText]:
        return [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in self.calls]

    @classmethod
    def from_row(cls, row: AnswerRow) -> SentBack:
        return cls(row["text"], tuple(ToolCall(c["name"], c["arguments"], c["id"]) for c in row["calls"]))


@dataclass(frozen=True)
class History:
    """Turns of a session so far. `branch` is its continuation, from 1 (0: the common beginning), `question` the number of
    answered questions, `round` that of rounds of tool calls in the current one. `messages` are JSON, each with a trailing
    comma; `own_tokens` are those of the messages that we wrote.
    """

    branch: int = 0
    question: int = 0
    round: int = 0
    messages: tuple[bytes, ...] = ()
    own_tokens: int = 0


class Session:
    """Requests of one session, made of its step. `turns` are the questions on one path. After `fork` of them there are
    `branches` continuations. `tools`: the requests define tools.
    """

    def __init__(self, step: Step, facts: Facts) -> None:
        self.step, self.facts = step, facts
        self.options: LiveOptions = step.payload["conversation"]
        self.tools = "tools" in step.payload
        self.tool_choice: str | None = step.payload["tools"].choice if self.tools else None
        self.turns = self._draw(_TURNS, 0, self.options.turns)
        branches = self.options.branches
        self.branches = branches.count if branches is not None and branches.after < self.turns else 0
        self.fork = branches.after if branches is not None and self.branches else self.turns

    @property
    def planned_turns(self) -> int:
        return self.fork + self.branches * (self.turns - self.fork)

    def begin(self) -> History:
        system = self.options.system
        if system is None:
            return History()
        seed = draws.hash64(self.step.run_seed, draws.text_seed(self.step.traffic), _SYSTEM)
        number = self.step.ordinal % system.different
        text = corpus_for(self.facts.text).text_of(system.tokens, draws.Rng(draws.hash64(seed, number)))
        return History(messages=(message(role="system", content=text),), own_tokens=system.tokens)

    def step_of(self, history: History) -> Step:
        options: Any = self.options
        own = options.model_copy(update={"history": history})
        return replace(self.step, payload={**self.step.payload, "conversation": own})

    def answered(self, history: History, answer: SentBack) -> History:
        """Add the question, if new, the answer, and the results of its calls."""
        messages, own = list(history.messages), history.own_tokens
        if history.round == 0:
            text, tokens = self.question(history)[:2]
            messages.append(message(role="user", content=text))
            own += tokens
        calls = answer.calls if self.tools and history.round < self.options.tool_rounds else ()
        if not calls:
            messages.append(message(role="assistant", content=answer.text))
            return replace(history, question=history.question + 1, round=0, messages=tuple(messages), own_tokens=own)
        messages.append(message(role="assistant", content=answer.text or None, tool_calls=_called(calls)))
        for number, call in enumerate(calls):
            kind = draws.hash64(_RESULT, history.round, number)
            tokens = self._draw(kind, history.question, self.options.tool_result, history.branch)
            rng = draws.Rng(draws.hash64(self.step.seed, kind, history.branch, history.question, 1))
            text = corpus_for(self.facts.text).text_of(tokens, rng)
            messages.append(message(role="tool", tool_call_id=call.id, content=text))
            own += tokens
        return replace(history, round=history.round + 1, messages=tuple(messages), own_tokens=own)

    def question(self, history: History) -> tuple[str, int, str, bool]:
        """Make the question that follows a history. Returns (text, tokens, secret word, True if the word is whole)."""
        wanted = self._draw(_QUESTION, history.question, self.options.question, history.branch)
        if not history.question:
            wanted = max(1, min(wanted, self._limit() - self.first_tokens(history)))
        corpus, owner = corpus_for(self.facts.text), secret_word.of_request(self.step.index)
        secret = secret_word.encode(owner, self.step.run_seed)
        rng = draws.Rng(draws.hash64(self.step.seed, _QUESTION, history.branch, history.question, 1))
        nonce, used, whole = corpus.make_nonce(wanted, secret, rng)
        return nonce + corpus.text_of(wanted - used, rng), wanted, nonce, whole

    def think_s(self, history: History) -> float:
        """Time before the question of a history, in seconds."""
        think = self.options.think
        if think is None:
            return 0.0
        return think.draw_s(draws.Rng(draws.hash64(self.step.seed, _THINK, history.branch, history.question)))

    def least_tokens(self, history: History) -> int | None:
        """Fewest prompt tokens that a server can count; None: unknown."""
        if self.facts.text is None or self.facts.text.source == "guess":
            return None
        own = history.own_tokens + (self.question(history)[1] if history.round == 0 else 0)
        return max(0, own - _MERGED_TOKENS * (len(history.messages) + 1))

    def first_tokens(self, begin: History) -> int:
        """Tokens of the first prompt without its question, estimated from above."""
        overhead = self.facts.text.overhead if self.facts.text is not None else _TEMPLATE_TOKENS
        system = begin.own_tokens + (_TEMPLATE_TOKENS if begin.messages else 0)
        return overhead + system + self._tool_tokens()

    def tokens_after(self, history: History, before: History, used: int) -> int:
        """Tokens that a history has in a prompt, estimated from above; `used`: those of `before` and its answer."""
        sent = self.question(before)[1] if before.round == 0 else 0
        new = history.own_tokens - before.own_tokens - sent
        return used + new + _TEMPLATE_TOKENS * (len(history.messages) - len(before.messages))

    def next_tokens(self, history: History, tokens: int) -> int:
        """Tokens of the prompt after a history of `tokens`."""
        first = not history.question and not history.round
        question = self.question(history)[1] if history.round == 0 else 0
        return tokens + question + (0 if first else _TEMPLATE_TOKENS)

    def fits(self, history: History, tokens: int) -> bool:
        """Tell if the prompt after a history of `tokens` leaves room to answer."""
        return self.next_tokens(history, tokens) <= self._limit()

    def _tool_tokens(self) -> int:
        """Tokens of the definitions of tools, estimated from above."""
        if not self.tools:
            return 0
        options: Any = self.step.payload["tools"]
        words = self.facts.text.words if self.facts.text is not None else ()
        size = sum(len(word.encode()) for word, _ in words)
        per_byte = max(_TOKENS_PER_JSON_BYTE, sum(cost for _, cost in words) / size if size else 0.0)
        return _TOOL_ORDER_TOKENS + math.ceil(per_byte * tools.definition_bytes(options.count.high))

    def _limit(self) -> int:
        output = self.step.output.tokens
        most = sequence_limits(self.facts).prompt_beside(output)
        return most if self.options.most_tokens is None else min(most, self.options.most_tokens)

    def _draw(self, kind: int, number: int, bounds: Range, branch: int = 0) -> int:
        return draws.Rng(draws.hash64(self.step.seed, kind, branch, number)).between(bounds.low, bounds.high)


def add(request: Request, facts: Facts) -> None:
    """Put the history in front and set the newest question. There is none where tools have just answered."""
    session = Session(request.step, facts)
    history = session.options.history or session.begin()
    request.fixed_length = True
    request.contract = request.contract or AnswerContract()  # the answer is read for its text and calls
    request.history = list(history.messages)
    request.calls_over = history.round >= session.options.tool_rounds
    if history.round:
        request.text, request.continues, request.secret_sent = "", True, True
        return
    request.text, tokens, request.nonce, request.secret_sent = session.question(history)
    if not history.messages and facts.text is not None:
        request.text_tokens = facts.text.overhead + tokens
    request.length_known = request.text_tokens is not None


def per_session(options: LiveOptions, rounds: int) -> SessionContent:
    """Average content of a session with `rounds` of tool calls a question; `in_a_row` and `think_s` on its longest path."""
    branches, lengths = options.branches, range(options.turns.low, options.turns.high + 1)
    turns = sum(lengths) / len(lengths)
    extra = 0 if branches is None else sum((branches.count - 1) * max(0, n - branches.after) for n in lengths)
    mean_s = 0.0 if options.think is None else min(options.think.mean, options.think.most or options.think.mean)
    requests = (turns + extra / len(lengths)) * (1 + rounds)
    return SessionContent(requests, turns * (1 + rounds), (turns - 1) * mean_s)


def step_of_request(step: Step, facts: Facts, request_id: str, answers: Mapping[str, SentBack]) -> Step | None:
    """Make the step of a request of a session from the answers before it, by request id; None if one is missing."""
    place = place_of(request_id)
    session = Session(step, facts)
    history, branch, number = session.begin(), 0, 0
    while (branch, number) != (place.branch, place.number):
        if number or not branch:
            answer = answers.get(f"{place.first}{suffix(branch, number)}")
            if answer is None:
                return None
            history = session.answered(history, answer)
        if not branch and place.branch and history.question == session.fork:
            branch, number, history = place.branch, 0, replace(history, branch=place.branch)
        number += 1
    return session.step_of(history)


def answer_of(text: str, calls: Sequence[ToolCall]) -> SentBack:
    """Make the answer that is sent back. It has the calls whose arguments are a JSON object. A server refuses a history
    with others, or cannot write it.
    """
    kept = [
        c if c.id else c._replace(id=f"call_{n}") for n, c in enumerate(calls) if c.name and _is_object(c.arguments)
    ]
    return SentBack(text, tuple(kept))


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _called(calls: Sequence[ToolCall]) -> list[dict[str, object]]:
    return [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]


def message(**fields: object) -> bytes:
    """Build a message as JSON with a trailing comma."""
    return orjson.dumps(fields) + b","
