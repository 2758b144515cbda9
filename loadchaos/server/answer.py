"""Answer of a server to one question outside the load, and the interface of what asks it (run/asker.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack

import httpx

from loadchaos.core.model import Outcome
from loadchaos.server.dialects import Dialect

CHAT_PATH = "/v1/chat/completions"
_COMPLETIONS = frozenset({"ok", "wrong_output", "truncated", "empty", "finish_abort"})


@dataclass(frozen=True)
class Answer:
    """Answer to one question, or why there is none.

    Attributes:
        outcome: by the rules of the load; `unfinished`: the answer was not waited for.
        error: why the outcome is not `ok`; empty: it is.
        status: HTTP status; 0: no answer came, or it was cut off.
        headers: values by lower-case name.
        body: begin of the body, as text.
        text: text of the first choice; its reasoning where there is nothing else.
        finish: finish_reason.
        tokens: tokens with logprobs, where the server gives them.
        gaps: for each token its logprob minus that of the likeliest other one.
        signs: unusual properties of the text, as in the row `end`; so is `text_ratio`.
        sent_ns: when it was asked, monotonic ns.
        head_ns: when the response head came; None: it did not.
    """

    outcome: Outcome
    error: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    text: str = ""
    finish: str | None = None
    tokens: Sequence[str] = ()
    gaps: Sequence[float] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    signs: Sequence[str] = ()
    text_ratio: float | None = None
    sent_ns: int = 0
    head_ns: int | None = None

    @property
    def is_completion(self) -> bool:
        """True for a completion, right or wrong; False for an error, a refusal or another page."""
        return self.outcome in _COMPLETIONS

    @property
    def is_fault(self) -> bool:
        """True for a 5xx, for no answer, and for a 200 that holds an error or no completion."""
        refused = self.outcome in {"rejected", "shed"} or 400 <= self.status < 500
        return self.status >= 500 or not (self.is_completion or refused)


NOT_WAITED_FOR = Answer("unfinished", "not waited for")


class AskOptions(TypedDict, total=False):
    """Options of one question.

    Attributes:
        silence_s: limit of the time without a byte; None: only the other limit.
        stream: a streamed answer is asked for.
        answers: choices that are asked for; None: unknown.
        leave_after: close the connection after so many chunks with content; None: read all.
        dialect: kind of server in place of the asker's own.
    """

    silence_s: float | None
    stream: bool
    answers: int | None
    leave_after: int | None
    dialect: Dialect | None


class Asker(Protocol):
    """Asks questions over HTTP; the server decides nothing but the answer.

    Attributes:
        http: its client.
        dialect: kind of the server; its error texts decide outcomes.
    """

    http: httpx.AsyncClient
    dialect: Dialect

    async def ask(
        self,
        url: str,
        body: bytes,
        *,
        limit_s: float,
        **options: Unpack[AskOptions],
    ) -> Answer:
        """Ask one question and wait for its answer; raises nothing for what a server does.

        Args:
            url: whole URL; the end of its path tells the endpoint, and so headers and reader.
            body: the request.
            limit_s: limit of the whole exchange in seconds.
            options: as `AskOptions` has them.
        """


def chat_body(model: str, content: Any, most_tokens: int, **options: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    body = {"model": model, "messages": messages, "max_tokens": most_tokens, "temperature": 0, **options}
    return json.dumps(body).encode()
