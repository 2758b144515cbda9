"""Send one question and record its answer as a `question` row.

The answer is whole or streamed. Where the server gives logprobs, the row has each token with the gap to the next likely
one: that tells a wrong token from a near tie.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadchaos.core import bounded_http
from loadchaos.core.ledger.rows import Emit, QuestionPart, QuestionRow, QuestionTime
from loadchaos.core.redact import Redactor
from loadchaos.server.monitor.base import ServerAccess
from loadchaos.server.probes.memory import Learned, ProbeMemory
from loadchaos.server.probes.question import Question

LIMIT_S = 120.0
_TEXT_CHARS = 4_000
_ERROR_CHARS = 400
_MOST_LINES = 20_000
_TOP = 2


@dataclass(frozen=True)
class Purpose:
    """Purpose of a question; fields as in `QuestionRow`."""

    part: QuestionPart
    kind: str
    when: QuestionTime
    group: int = 0
    role: str = ""


@dataclass
class Answer:
    """Parsed answer of a server."""

    text: str = ""
    finish: str | None = None
    tokens: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    usage: Mapping[str, int] = field(default_factory=dict)


class Asker:
    """Sends questions to one server; writes a row for each, never raises."""

    def __init__(
        self,
        url: str,
        model: str,
        emit: Emit,
        redactor: Redactor,
        access: ServerAccess,
        memory: ProbeMemory | None = None,
    ) -> None:
        self._url, self.model, self._emit, self._redactor = (
            url.rstrip("/") + "/v1/chat/completions",
            model,
            emit,
            redactor,
        )
        self._client = httpx.AsyncClient(
            headers=dict(access.headers), verify=access.tls or True, trust_env=False, timeout=LIMIT_S,
            limits=httpx.Limits(max_connections=512, keepalive_expiry=0.0),
        )  # fmt: skip
        self._memory = memory if memory is not None else ProbeMemory()
        self.kept: list[Learned] | None = None
        """Collects the rows that are written; None: they are not collected."""

    @property
    def logprobs(self) -> bool:
        """False once the server refused a request with logprobs."""
        return self._memory.logprobs

    def emit(self, row: Learned) -> None:
        """Write a row."""
        self._emit(row)
        if self.kept is not None:
            self.kept.append(row)

    def new_group(self) -> int:
        """Return a number for questions that are compared with each other."""
        return next(self._memory.groups)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self, question: Question, purpose: Purpose, *, stream: bool = False, model: str | None = None
    ) -> QuestionRow:
        """Send a question, wait for its answer, write and return the row."""
        sent_ns, n, model = time.monotonic_ns(), next(self._memory.numbers), model or self.model
        status, answer, error = 0, Answer(), "not waited for"
        try:
            status, answer, error = await self._exchange(question, model, stream=stream)
            if self.logprobs and 400 <= status < 500 and "logprob" in error.lower():
                self._memory.logprobs = False
                status, answer, error = await self._exchange(question, model, stream=stream)
        finally:
            row = self._row(question, purpose, answer, (status, error))
            row |= {"n": n, "sent_ns": sent_ns, "model": model}
            self.emit(row)
        return row

    async def leave(self, question: Question, *, after_tokens: int) -> None:
        """Send a streamed request and close its connection after some tokens.

        Nothing is judged, so no row is written.
        """
        body, chunks = self._body(question, self.model, stream=True), 0
        try:
            async with asyncio.timeout(LIMIT_S), self._client.stream("POST", self._url, json=body) as response:
                async for line in response.aiter_lines():
                    chunks += line.startswith("data:") and '"role"' not in line
                    if chunks >= after_tokens:
                        return
        except (httpx.HTTPError, TimeoutError):
            return

    def _body(self, question: Question, model: str, *, stream: bool) -> dict[str, Any]:
        return {
            "model": model, "messages": [{"role": "user", "content": _content(question)}], "stream": stream,
            "max_tokens": question.most_tokens, "temperature": 0, "seed": 1,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **({"cache_salt": question.salt} if question.salt else {}),
            **({"logprobs": True, "top_logprobs": _TOP} if self.logprobs else {}),
        }  # fmt: skip

    async def _exchange(self, question: Question, model: str, *, stream: bool) -> tuple[int, Answer, str]:
        """Send one request; returns status, answer and error."""
        body = self._body(question, model, stream=stream)
        try:
            if stream:
                return await self._streamed(body)
            answer = await bounded_http.request(self._client, "POST", self._url, json=body, limit_s=LIMIT_S)
            if answer.status != 200:
                return answer.status, Answer(), answer.text
            return 200, *_of_body(answer.text)
        except (LookupError, TypeError, AttributeError):
            return 0, Answer(), "the answer has status 200 and is no chat completion"
        except (
            httpx.HTTPError, TimeoutError, ValueError, RecursionError, bounded_http.IncompleteError,
            bounded_http.TooLargeError,
        ) as e:  # fmt: skip
            return 0, Answer(), f"{type(e).__name__}: {e}"

    async def _streamed(self, body: Mapping[str, Any]) -> tuple[int, Answer, str]:
        whole = Answer()
        async with asyncio.timeout(LIMIT_S), self._client.stream("POST", self._url, json=body) as response:
            if response.status_code != 200:
                return response.status_code, whole, (await response.aread()).decode("utf-8", "replace")
            lines, others = 0, list[str]()
            async for line in response.aiter_lines():
                lines += 1
                data = line.removeprefix("data:").strip()
                if lines > _MOST_LINES:
                    return 200, whole, f"the stream has more than {_MOST_LINES:,} lines"
                if not line.startswith("data:"):
                    others.append(line)
                if not line.startswith("data:") or data == "[DONE]":
                    continue
                chunk = json.loads(data)
                if error := _error_in(chunk):
                    return 200, whole, error
                whole.usage = _usage(chunk.get("usage")) or whole.usage
                for choice in chunk.get("choices") or ():
                    _add(whole, choice, choice.get("delta") or {})
        if others and others[0].startswith("{"):  # one JSON value in place of a stream
            return 200, *_of_body("".join(others))
        return 200, whole, ""

    def _row(self, question: Question, purpose: Purpose, answer: Answer, result: tuple[int, str]) -> QuestionRow:
        status, error = result
        message = json.dumps([question.prompt, *question.images])
        row: QuestionRow = {
            "row": "question", "at_ns": time.monotonic_ns(), "sent_ns": 0, "n": 0, "group": purpose.group,
            "part": purpose.part, "kind": purpose.kind, "when": purpose.when, "role": purpose.role, "model": "",
            "prompt": question.prompt[:_TEXT_CHARS], "hash": hashlib.sha256(message.encode()).hexdigest()[:16],
            "expected": question.expected, "status": status, "text": answer.text[:_TEXT_CHARS],
            "error": self._redactor.text(error)[:_ERROR_CHARS],
        }  # fmt: skip
        if question.images:
            row["image_names"] = [_name(question.uuid or url) for url in question.images]
        if answer.finish is not None:
            row["finish"] = answer.finish
        if answer.tokens:
            row["tokens"], row["gaps"] = answer.tokens, answer.gaps
        if answer.usage:
            row["prompt_tokens"] = answer.usage.get("prompt_tokens")
            row["completion_tokens"] = answer.usage.get("completion_tokens")
            row["cached_tokens"] = answer.usage.get("cached_tokens")
        return row


def _name(image: str) -> int:
    """Number of an image, as `image_names` has it."""
    return int.from_bytes(hashlib.sha256(image.encode()).digest()[:6])


def _content(question: Question) -> object:
    if not question.images:
        return question.prompt
    named = {"uuid": question.uuid} if question.uuid else {}
    images = [{"type": "image_url", "image_url": {"url": url}, **named} for url in question.images]
    return [*images, {"type": "text", "text": question.prompt}]


def _of_body(text: str) -> tuple[Answer, str]:
    """Answer and error of a JSON body."""
    body = json.loads(text)
    error = _error_in(body)
    return Answer() if error else _parsed(body), error


def _error_in(body: Any) -> str:
    """Text of the error that stands in place of an answer; empty without one."""
    error = body.get("error")
    if not error or body.get("choices"):
        return ""
    text = error.get("message") if isinstance(error, Mapping) else error
    return text if isinstance(text, str) and text else json.dumps(error)


def _usage(usage: Any) -> Mapping[str, int]:
    """Counts of an answer that are numbers; a server may send anything."""
    if not isinstance(usage, Mapping):
        return {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    found = {**{key: usage.get(key) for key in ("prompt_tokens", "completion_tokens")}, "cached_tokens": cached}
    return {key: value for key, value in found.items() if type(value) is int}


def _parsed(body: Any) -> Answer:
    """Parse a chat completion.

    Raises LookupError or TypeError for anything else.
    """
    answer = Answer(usage=_usage(body.get("usage")))
    choice = body["choices"][0]
    _add(answer, choice, choice["message"])
    return answer


def _add(answer: Answer, choice: Mapping[str, Any], part: Mapping[str, Any]) -> None:
    """Add the text and the tokens of a message or of a delta."""
    found = (part.get(key) for key in ("content", "reasoning_content", "reasoning"))
    answer.text += next((text for text in found if isinstance(text, str) and text), "")
    finish = choice.get("finish_reason")
    answer.finish = finish if isinstance(finish, str) and finish else answer.finish
    for token, gap in _tokens(choice.get("logprobs")):
        answer.tokens.append(token)
        answer.gaps.append(gap)


def _tokens(logprobs: Any) -> Iterator[tuple[str, float]]:
    """Yield each token and its logprob minus that of the likeliest other one."""
    for entry in (logprobs or {}).get("content") or ():
        own, token = float(entry["logprob"]), str(entry["token"])
        others = sorted((float(t["logprob"]) for t in entry.get("top_logprobs") or ()), reverse=True)
        if own in others:
            others.remove(own)
        yield token, round(own - others[0], 4) if others else 0.0
