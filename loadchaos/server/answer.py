"""Answer of a server to one question outside the load, and the interface of what asks it (run/asker.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack

import httpx

from loadchaos.core.field_changes import FieldChanges, with_changes
from loadchaos.core.model import Outcome
from loadchaos.server.dialects import Dialect

SMALL_QUESTION = "Hello"
"""Prompt of a request that only shows whether the model answers."""
ERROR_CHARS = 400
"""Characters of an error text that a row of a question keeps."""
ANSWER_LIMIT_S = 120.0  # a first request may compile for 15 s, on a loaded machine for longer
_COMPLETIONS = frozenset({"ok", "wrong_output", "truncated", "empty", "finish_abort"})


@dataclass(frozen=True)
class Answer:
    """Answer to one question, or why there is none (`error`; `outcome` by the rules of the load). `status` 0: no answer
    came, or it was cut off. `headers` by lower-case name; `text` of the first choice. `tokens` with logprobs, and
    `gaps`: the logprob of each minus that of the likeliest other one. `signs` and `text_ratio` as in the row `end`.
    `sent_ns`, `head_ns`: monotonic; None: no head came.
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
    """Options of one question. `silence_s`: limit of the time without a byte; `answers`: choices that are asked for,
    None: unknown; `leave_after`: close the connection after so many chunks with content; `dialect`: in place of the
    asker's own.
    """

    silence_s: float | None
    stream: bool
    answers: int | None
    leave_after: int | None
    dialect: Dialect | None


class Asker(Protocol):
    """Asks questions over HTTP (run/asker.py). The dialect's error texts decide outcomes. `changes`: of the fields of
    questions, as the server takes them.
    """

    http: httpx.AsyncClient
    dialect: Dialect
    changes: FieldChanges

    async def ask(self, url: str, body: bytes, *, limit_s: float, **options: Unpack[AskOptions]) -> Answer:
        """Ask one question and wait at most `limit_s`; raises nothing for what a server does. The end of the whole
        `url` tells the endpoint, and so headers and reader.
        """


def chat_body(model: str, content: Any, most_tokens: int, changes: FieldChanges = (), **options: Any) -> bytes:
    """Body of a question; `content` None: `options` have the messages."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": most_tokens}
    return json.dumps(with_changes({**body, "temperature": 0, **options}, changes)).encode()
