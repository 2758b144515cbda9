"""Write ledger rows of the requests that pass a recording proxy, by the rules of a load of our own."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import orjson

from loadchaos.campaigns.recorder.channel import RecordingChannel
from loadchaos.campaigns.recorder.from_recording import images_in
from loadchaos.campaigns.recorder.tap import ConnectionTap, TappedExchange, secret_words
from loadchaos.campaigns.watch.foreign_words import ForeignWords
from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import Facts, Output, Step
from loadchaos.core.redact import Redactor
from loadchaos.load.endpoints import DEFAULT, ENDPOINTS, known_endpoint_of_path
from loadchaos.load.payloads.body_contract import contract_of_request
from loadchaos.load.wire.answer_reader import SMALLEST_CONTEXT, AnswerReader, AnswerRules
from loadchaos.load.wire.contract import asked_tokens
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.seen_exchange import SeenExchange
from loadchaos.load.worker.recorder import RequestRecorder
from loadchaos.load.worker.worker_plan import redact_row
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_HTTP2, _TLS = b"PRI * HTTP/2", b"\x16\x03"


class UnreadableConnectionError(Exception):
    """The client speaks another protocol than HTTP/1; its bytes are passed on and not read."""


class RequestLog:
    """Rows of all connections of one proxy. `not_read` counts connections by what kept us from reading them. `failure`:
    why rows cannot be written any more.
    """

    def __init__(self, recorder: RequestRecorder, channel: RecordingChannel, facts: Facts, redactor: Redactor) -> None:
        self.recorder, self.channel = recorder, channel
        self.not_read: Counter[str] = Counter()
        self.failure: LedgerError | None = None
        self._dialect = DIALECTS.get(facts.dialect, UNKNOWN).at(facts.version)
        self._context = facts.max_model_len or SMALLEST_CONTEXT
        self._redactor = redactor
        # Behind a server of many users, an answer may have what its server has stored of another one.
        self._words = ForeignWords() if channel.keeps_bodies else None
        self._steps = self._connections = 0

    def connection(self) -> LedgerTap:
        self._connections += 1
        return LedgerTap(self, self._connections)

    def begin(self, exchange: SeenExchange) -> None:
        self._write(lambda: self.recorder.begin(exchange))

    def end(self, exchange: SeenExchange, secrets: Sequence[str]) -> None:
        row: EndRow = exchange.end_row()
        redact_row(row, Redactor(secrets))
        redact_row(row, self._redactor)
        self._write(lambda: self.recorder.end(exchange, row))

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except LedgerError as e:
            self.failure = self.failure or e

    def request_of(self, tapped: TappedExchange, body: bytes) -> Request:
        """Make the request that a client sent, with the rules of its answer as far as its body tells them."""
        name = known_endpoint_of_path(tapped.path.decode("latin-1")) or DEFAULT
        try:
            fields = orjson.loads(body) if body[:1] == b"{" else {}
        except orjson.JSONDecodeError:
            fields = {}  # the server's reaction to it counts
        stream = fields.get("stream") is True
        step = Step(
            index=self._steps, phase=0, round=0, due_s=None, traffic=name, seed=0, payload={}, behaviour="plain",
            behaviour_options=None, output=Output(), stream=stream, endpoint=name,
        )  # fmt: skip
        self._steps += 1
        request = Request(step, step.output, ["ok"], stream, tapped.path.decode("latin-1"), name, body=body)
        request.id, request.max_tokens = f"w-{step.index}", asked_tokens(body)
        request.images, request.image_names = images_in(fields), None
        request.contract = contract_of_request(body, guides_tools=self._dialect.guides_tools) if fields else None
        single = name == DEFAULT or isinstance(fields.get("prompt"), str)
        n = fields.get("n", 1)
        request.answers = n if single and name in (DEFAULT, "completions") and isinstance(n, int) else None
        model = fields.get("model")
        request.rules = AnswerRules(
            self._dialect.outcome_rules,
            None if self._words is None else self._words.checker(request.id, body),
            request.contract,
            request.answers,
            request.max_tokens,
            model=model if isinstance(model, str) else None,
            logprobs=name == DEFAULT and fields.get("logprobs") is True,
            limit=request.max_tokens,
            context=self._context,
        )
        request.reader = ENDPOINTS[name].answer
        return request


class _SkippedAnswer(AnswerReader):
    """Answer of which only the end counts."""

    def feed(self, at_ns: int, piece: bytes) -> int:  # noqa: ARG002 - nothing of it is kept
        return 0


class _Seen:
    """A request of a connection. Only one to an endpoint is `judged`; the answers to others are read for their end."""

    def __init__(self, tapped: TappedExchange) -> None:
        self.tapped = tapped
        self.judged = tapped.recorded and known_endpoint_of_path(tapped.path.decode("latin-1")) is not None
        self.body: list[bytes] = []
        self.exchange: SeenExchange | None = None


class _ConnectionLog:
    """Sink of one connection: passes what the tap has read to the recording, and makes the rows."""

    def __init__(self, log: RequestLog, number: int) -> None:
        self.log, self._number = log, number
        self.waiting: deque[_Seen] = deque()
        self._answered_ns: int | None = None
        self.next_id = log.channel.next_id

    def begin(self, exchange: TappedExchange) -> None:
        self.waiting.append(_Seen(exchange))
        self.log.channel.begin(exchange)

    def body(self, exchange: TappedExchange, data: bytes) -> None:
        if (seen := self._find(exchange)) is not None and seen.judged:
            seen.body.append(data)
        self.log.channel.body(exchange, data)

    def body_end(self, exchange: TappedExchange) -> None:
        if (seen := self._find(exchange)) is not None and not exchange.lost:
            self._begun(seen)
        self.log.channel.body_end(exchange)

    def end(self, exchange: TappedExchange) -> None:
        if exchange.method == "HEAD" and (seen := self._find(exchange)) is not None:
            self.waiting.remove(seen)  # the reader of the rows does not know that its answer has no body
        self.log.channel.end(exchange)

    def read(self, now_ns: int, data: bytes) -> None:
        """Read bytes for the oldest request. What follows its answer belongs to the next one."""
        while data and self.waiting and self.waiting[0].tapped.method != "HEAD":
            exchange = self._begun(self.waiting[0])  # an answer may come before the request is whole
            exchange.read(now_ns, data)
            if not exchange.ended:
                return
            data = exchange.excess
            self._answered_ns = now_ns
            self._ended(self.waiting.popleft())

    def drop(self) -> None:
        """Forget requests that cannot be read on: their rows have no end, and they are in flight no more."""
        for seen in self.waiting:
            if seen.exchange is not None:
                self.log.recorder.in_flight.pop(seen.exchange.request.id, None)
        self.waiting.clear()

    def close(self, reason: str) -> None:
        while self.waiting:
            seen = self.waiting.popleft()
            self._begun(seen).end_by(reason)
            self._ended(seen)

    def _find(self, exchange: TappedExchange) -> _Seen | None:
        return next((seen for seen in reversed(self.waiting) if seen.tapped is exchange), None)

    def _begun(self, seen: _Seen) -> SeenExchange:
        if seen.exchange is None:
            idle_ns = None if self._answered_ns is None else max(0, seen.tapped.at_ns - self._answered_ns)
            request = self.log.request_of(seen.tapped, b"".join(seen.body))
            if not seen.judged:
                request.reader = _SkippedAnswer
            seen.exchange = SeenExchange(request, self.log.recorder.progress, seen.tapped.at_ns, self._number, idle_ns)
            if seen.judged:
                self.log.begin(seen.exchange)
        return seen.exchange

    def _ended(self, seen: _Seen) -> None:
        if seen.judged and seen.exchange is not None:
            self.log.end(seen.exchange, secret_words(seen.tapped.secrets))


class LedgerTap(ConnectionTap):
    """Reads one connection twice: for the recording, as its base does, and for the rows."""

    def __init__(self, log: RequestLog, number: int) -> None:
        self._seen = _ConnectionLog(log, number)
        super().__init__(self._seen)
        self._first = True

    def feed_request(self, data: bytes) -> None:
        if self._first:
            self._first = False
            protocol = "HTTP/2" if data.startswith(_HTTP2) else "TLS" if data.startswith(_TLS) else ""
            if protocol:
                self._seen.log.not_read[f"the client speaks {protocol}"] += 1
                raise UnreadableConnectionError(protocol)
        with self._dropped_on_error():
            super().feed_request(data)

    def feed_answer(self, data: bytes) -> None:
        with self._dropped_on_error():
            if not self._upgraded:
                self._seen.read(time.monotonic_ns(), data)
            super().feed_answer(data)
        if self._upgraded and self._seen.waiting:
            self._seen.log.not_read["the connection was upgraded, as for WebSocket"] += 1
            self._seen.waiting.clear()

    def end(self, reason: str) -> None:
        super().end(reason)
        self._seen.close(reason)

    @contextlib.contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._seen.drop()
            self._seen.log.not_read["it is not readable as HTTP/1.1"] += 1
            raise
