"""Ask a server one question outside the load, and read its answer as the load does."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import httpx

from loadchaos.core import http_client
from loadchaos.core.field_changes import FieldChanges
from loadchaos.core.limits import MOST_ANSWER_BYTES
from loadchaos.core.outcome_rules import End, OutcomeEvent, end_event
from loadchaos.core.units import describe_duration
from loadchaos.load.endpoints import DEFAULT, ENDPOINTS, endpoint_of_path
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.contract import AnswerContract, asked_tokens
from loadchaos.load.wire.decision import KEPT_ERROR_BYTES, ExchangeEnd, ResponseHead, decide, signs, text_ratio
from loadchaos.server.answer import Answer, AskOptions
from loadchaos.server.dialects import UNKNOWN, Dialect

_CLOSED = ("disconnected", "closed connection")
_NO_CONTRACT = AnswerContract()
"""Obeyed by every answer; with it the reader keeps text and reasoning apart."""


class HttpAsker:
    """Implements `Asker` with httpx. `asked`: number of questions so far."""

    def __init__(self, http: httpx.AsyncClient, dialect: Dialect = UNKNOWN) -> None:
        self.http, self.dialect, self.asked = http, dialect, 0
        self.changes: FieldChanges = ()

    @classmethod
    def with_own_client(cls, headers: Mapping[str, str], tls: ssl.SSLContext | bool = True) -> HttpAsker:
        """Make one with a client of its own, whose connections are used once: `http.aclose` ends it."""
        return cls(http_client.client(headers, tls, used_once=True))

    async def ask(self, url: str, body: bytes, *, limit_s: float, **options: Unpack[AskOptions]) -> Answer:
        self.asked += 1
        dialect, silence_s = options.get("dialect") or self.dialect, options.get("silence_s")
        rules = AnswerRules(dialect.outcome_rules, answers=options.get("answers"), most_tokens=asked_tokens(body))
        reading = _Reading(url, rules, stream=options.get("stream", False))
        headers = {**reading.endpoint.headers, "content-type": reading.endpoint.content_type}
        try:
            async with (
                asyncio.timeout(limit_s),
                self.http.stream("POST", url, content=body, headers=headers, timeout=silence_s or limit_s) as response,
            ):
                reading.begin(response)
                async for piece in response.aiter_bytes():
                    if reading.feed(piece, options.get("leave_after")):
                        break
            return reading.answer()
        except (TimeoutError, httpx.TimeoutException) as e:
            stalled = silence_s is not None and isinstance(e, httpx.TimeoutException)
            begun = f"the answer began but did not end ({reading.size} bytes of its body came)"
            why = f"{'no answer' if reading.head_ns is None else begun} within "
            why += describe_duration(silence_s if stalled and silence_s is not None else limit_s)
            return reading.answer("stalled" if stalled else "timeout", why)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
            return reading.answer(_end_of(e), f"{type(e).__name__}: {e}" if str(e) else type(e).__name__)


def _end_of(error: Exception) -> End:
    if isinstance(error, httpx.ConnectError | httpx.InvalidURL | httpx.UnsupportedProtocol):
        return "unreached"
    broken = isinstance(error, httpx.RemoteProtocolError) and not any(text in str(error) for text in _CLOSED)
    return "not_http" if broken or isinstance(error, httpx.DecodingError) else "cut"


class _Reading:
    def __init__(self, url: str, rules: AnswerRules, *, stream: bool) -> None:
        name = endpoint_of_path(url)
        self.endpoint, self._rules, self._stream = ENDPOINTS[name], rules, stream
        self._reader: type[AnswerReader] = self.endpoint.answer
        if name == DEFAULT:
            self._reader, self._rules = _ChatCompletion, replace(rules, contract=_NO_CONTRACT)
        self._completion: AnswerReader | None = None
        self._response: httpx.Response | None = None
        self._end: tuple[End, str] | None = None
        self._kept = b""
        self.size = 0
        self.head_ns: int | None = None
        self._sent_ns = self._last_ns = time.monotonic_ns()

    def begin(self, response: httpx.Response) -> None:
        self._response, self.head_ns = response, time.monotonic_ns()
        if response.is_success:
            declared = response.headers.get("content-type", "").startswith("text/event-stream")
            self._completion = self._reader(self._rules, asked_stream=self._stream, declared_stream=declared)

    def feed(self, piece: bytes, leave_after: int | None) -> bool:
        """Read bytes of the body; True: enough."""
        self._last_ns = time.monotonic_ns()
        self.size += len(piece)
        if len(self._kept) < KEPT_ERROR_BYTES:
            self._kept += piece[:KEPT_ERROR_BYTES]
        if self._completion is None:
            return len(self._kept) >= KEPT_ERROR_BYTES
        self._completion.feed(self._last_ns, piece)
        if self._completion.fault is not None:
            self._end = "not_http", self._completion.fault
        elif leave_after is not None and self._completion.chunks >= leave_after:
            self._end = "hung_up", "left as planned"
        elif self._completion.is_stream and self.size > MOST_ANSWER_BYTES:
            self._end = "timeout", f"the stream did not end within {MOST_ANSWER_BYTES >> 20} MiB"
        return self._end is not None

    def answer(self, end: End | None = None, why: str = "") -> Answer:
        """Conclude it; `end`: how the exchange ended without a complete body."""
        if end is None and self._end is not None:
            end, why = self._end
        response, answer = self._response, self._completion
        headers: Mapping[str, str] = {}
        head = None
        if response is not None:
            headers = {name.lower(): value for name, value in response.headers.items()}
            head = ResponseHead(response.status_code, response.reason_phrase, headers)
        ended = ExchangeEnd(end or "complete", why, self._last_ns)
        (event, *_), _ = decide(ended, head, answer, self._kept, self._rules.server)
        if head is None:
            return Answer(event.outcome, why, sent_ns=self._sent_ns)
        found = Answer(event.outcome, event.text) if answer is None else _read(answer, event)
        cut = answer is not None and end is not None and event == end_event(end, why)
        return replace(
            found, status=0 if cut else head.status, headers=headers, body=self._kept.decode("utf-8", "replace"),
            sent_ns=self._sent_ns, head_ns=self.head_ns,
        )  # fmt: skip


def _read(answer: AnswerReader, event: OutcomeEvent) -> Answer:
    error = event.text or event.outcome
    if event.outcome == "finish_error":  # its text is the model's
        error = f"finish_reason {answer.finish_reason}"
    own = next((text for text, _, _ in answer.contents() if text), "")
    tokens, gaps = _tokens(answer.logprobs) if isinstance(answer, _ChatCompletion) else ([], [])
    return Answer(
        event.outcome,
        "" if event.outcome == "ok" else error,
        text=own or answer.text,
        finish=answer.finish_reason,
        tokens=tokens,
        gaps=gaps,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        signs=signs(answer, answer.text),
        text_ratio=text_ratio(answer.text),
    )


class _ChatCompletion(AnswerReader):
    __slots__ = ("logprobs",)

    def __init__(self, rules: AnswerRules, *, asked_stream: bool, declared_stream: bool) -> None:
        super().__init__(rules, asked_stream=asked_stream, declared_stream=declared_stream)
        self.logprobs: list[Any] = []

    def _read_extras(self, index: int, choice: dict[str, object], message: Any) -> None:
        super()._read_extras(index, choice, message)
        found = choice.get("logprobs")
        entries = found.get("content") if isinstance(found, dict) else None
        self.logprobs += entries if isinstance(entries, list) else ()


def _tokens(entries: list[Any]) -> tuple[list[str], list[float]]:
    """Tokens, and for each its logprob minus that of the likeliest other one; empty where one is malformed."""
    tokens, gaps = list[str](), list[float]()
    try:
        for entry in entries:
            own = float(entry["logprob"])
            others = sorted((float(t["logprob"]) for t in entry.get("top_logprobs") or ()), reverse=True)
            if own in others:
                others.remove(own)
            tokens.append(str(entry["token"]))
            gaps.append(round(own - others[0], 4) if others else 0.0)
    except (LookupError, TypeError, ValueError, AttributeError):
        return [], []
    return tokens, gaps
