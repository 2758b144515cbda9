"""Read HTTP/1.1 beside the proxy: requests, answers, tokens, outcomes. A tap copies nothing but the bodies of requests,
in the pieces in which they arrive. Requests may be pipelined: answers come in the order of the requests. A piece of a
stream that is one whole chunk is counted without the parser. Only the last three pieces are kept.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Mapping
from time import monotonic_ns
from typing import Protocol

import httptools

from loadchaos.campaigns.recorder.answer_outcome import (
    FINISH_REASON,
    JSON_BYTES,
    STREAM_BYTES,
    STREAM_END_BYTES,
    SeenAnswer,
    outcome_of,
)
from loadchaos.core.http_answer import BODILESS
from loadchaos.core.model import Outcome
from loadchaos.core.outcome_rules import ENDS_WELL, End
from loadchaos.core.secret_patterns import is_secret_header
from loadchaos.server.monitor.http_get import response_parser

_TAIL_BYTES = 8192
_END_OF_REASON: Mapping[str, End] = {
    "refused": "unreached", "client_closed": "hung_up", "client_reset": "hung_up", "upstream_closed": "cut",
    "upstream_reset": "cut", "not_http": "not_http",
}  # fmt: skip
_SMALL_BYTES = 128
_MOST_SIZE_CHARS = 8
_USAGE = re.compile(rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|cached_tokens)": ?(\d{1,9})\b')
_FINISHES = ENDS_WELL | {"content_filter", "abort", "error"}
_HEADERS = (b"retry-after", b"content-encoding")


class TappedExchange:
    """One request and its answer. `tokens` counts events of a stream, without a first one that only names the role."""

    __slots__ = (
        "at_ns", "body_bytes", "drop_at", "dropped", "events", "first_ns", "gap_ns", "got_bytes", "headers", "id", "kept",
        "last_ns", "lost", "method", "outcome", "path", "recorded", "secrets", "sent_whole", "sse", "status", "tail",
        "tokens",
    )  # fmt: skip

    def __init__(self, number: int, at_ns: int, method: str, path: bytes) -> None:
        self.id, self.at_ns, self.method, self.path = number, at_ns, method, path
        self.status = self.tokens = self.events = self.got_bytes = self.body_bytes = 0
        self.first_ns = self.last_ns = self.gap_ns = 0
        self.sse = self.sent_whole = self.lost = False
        self.recorded = method == "POST"
        self.tail: tuple[bytes, bytes, bytes] = (b"", b"", b"")
        self.headers: Mapping[str, str] = {}
        self.kept: list[bytes] = []
        self.dropped, self.drop_at = 0, JSON_BYTES
        self.secrets: list[bytes] = []
        self.outcome: Outcome | None = None

    @property
    def end_text(self) -> bytes:
        return b"".join(self.tail)[-_TAIL_BYTES:]

    def drop_front(self) -> None:
        """Drop the first pieces of a body that is too long to be kept. The rest is at least STREAM_END_BYTES long."""
        spare, count = self.got_bytes - self.dropped - STREAM_END_BYTES, 0
        while spare >= len(self.kept[count]):
            spare -= len(self.kept[count])
            self.dropped += len(self.kept[count])
            count += 1
        del self.kept[:count]
        self.drop_at = self.got_bytes + STREAM_END_BYTES

    def end(self, end: End) -> None:
        body, path = b"".join(self.kept), self.path.decode("latin-1").rstrip("/")
        whole = len(body) >= self.got_bytes
        self.outcome = outcome_of(
            SeenAnswer(self.method == "POST", path, self.status, self.headers, self.sse, body, whole, self.last_ns), end
        )
        self.kept = []

    def finish(self) -> str | None:
        found = FINISH_REASON.findall(self.end_text)
        if not found:
            return None
        word = found[-1].decode()
        return word if word in _FINISHES else "other"

    def usage(self) -> dict[str, int]:
        return {name.decode(): int(count) for name, count in _USAGE.findall(self.end_text)}


def _tail(tail: tuple[bytes, bytes, bytes], data: bytes) -> tuple[bytes, bytes, bytes]:
    first, second, last = tail
    if len(data) >= _TAIL_BYTES:
        return (b"", b"", data[-_TAIL_BYTES:])
    return (second, last, data) if len(last) >= _SMALL_BYTES else (first, second, last + data)


class ExchangeSink(Protocol):
    """Receives what taps have read."""

    def next_id(self) -> int: ...

    def begin(self, exchange: TappedExchange) -> None: ...

    def body(self, exchange: TappedExchange, data: bytes) -> None: ...

    def body_end(self, exchange: TappedExchange) -> None: ...

    def end(self, exchange: TappedExchange) -> None:
        """Receive the end of an exchange; it has an outcome."""


class ConnectionTap:
    """Reads one connection beside the proxy. What it raises ends the reading of that connection and nothing else."""

    def __init__(self, sink: ExchangeSink) -> None:
        self._sink = sink
        self._open: deque[TappedExchange] = deque()
        self._requests = _RequestReader(sink, self._open)
        self._answers = _AnswerReader(sink, self._open)
        self._upgraded = False

    @property
    def answering(self) -> bool:
        """True while an answer is awaited, and on an upgraded connection."""
        return self._upgraded or bool(self._open)

    def feed_request(self, data: bytes) -> None:
        if not self._upgraded:
            with contextlib.suppress(httptools.HttpParserUpgrade):  # the answer decides
                self._requests.parser.feed_data(data)

    def feed_answer(self, data: bytes) -> None:
        if self._upgraded:
            return
        answers = self._answers
        now_ns = answers.now_ns = monotonic_ns()
        if answers.streamed is not None and answers.count_chunk(answers.streamed, data, now_ns):
            return
        try:
            answers.feed(data)
        except httptools.HttpParserUpgrade:
            self._upgraded = True
        except httptools.HttpParserError:
            self.end("not_http")
            raise

    def end(self, reason: str) -> None:
        """End all exchanges of the connection, for a reason of `_END_OF_REASON`."""
        if reason == "upstream_closed":
            self._answers.end_of_data()
        now = time.monotonic_ns()
        for exchange in self._open:
            exchange.last_ns = now
            exchange.end(_END_OF_REASON[reason])
            if not exchange.sent_whole:
                exchange.lost = True
                self._sink.body_end(exchange)
            self._sink.end(exchange)
        self._open.clear()


def secret_words(values: list[bytes]) -> list[str]:
    texts = [value.decode("latin-1") for value in values]
    return [*texts, *(word for text in texts for word in text.split())]


def end_row(exchange: TappedExchange) -> dict[str, object]:
    row: dict[str, object] = {
        "at_ns": exchange.last_ns or time.monotonic_ns(), "outcome": exchange.outcome, "status": exchange.status,
        "first_ns": exchange.first_ns, "tokens": exchange.tokens, "bytes": exchange.got_bytes,
        "gap_ns": exchange.gap_ns, "finish": exchange.finish(), "usage": exchange.usage(),
    }  # fmt: skip
    return {k: v for k, v in row.items() if v}


class _RequestReader:
    def __init__(self, sink: ExchangeSink, waiting: deque[TappedExchange]) -> None:
        self._sink, self._open = sink, waiting
        self.parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._secrets: list[bytes] = []
        self._at_ns = 0
        self._now: TappedExchange | None = None

    def on_message_begin(self) -> None:
        self._url, self._secrets, self._at_ns, self._now = b"", [], time.monotonic_ns(), None

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if is_secret_header(name.decode("latin-1")):
            self._secrets.append(value)

    def on_headers_complete(self) -> None:
        method = self.parser.get_method().decode("latin-1")
        exchange = TappedExchange(self._sink.next_id(), self._at_ns, method, self._url.partition(b"?")[0])
        exchange.secrets = self._secrets
        self._now = exchange
        self._open.append(exchange)
        self._sink.begin(exchange)

    def on_body(self, data: bytes) -> None:
        if self._now is not None:
            self._now.body_bytes += len(data)
            self._sink.body(self._now, data)

    def on_message_complete(self) -> None:
        if self._now is not None:
            self._now.sent_whole = True
            self._sink.body_end(self._now)
            self._now = None


class _AnswerReader:
    def __init__(self, sink: ExchangeSink, waiting: deque[TappedExchange]) -> None:
        self._sink, self._open = sink, waiting
        self.parser = response_parser(self)
        self._now: TappedExchange | None = None
        self._sse = self._framed = self._skip = False
        self._headers: dict[str, str] = {}
        self._between_chunks = False
        self.streamed: TappedExchange | None = None
        """Exchange whose event stream has brought a token, while the parser is between two chunks."""
        self.now_ns = 0

    def feed(self, data: bytes) -> None:
        """Parse bytes. The answer to a HEAD request has no body, which the parser does not know."""
        self.parser.feed_data(data)
        # Data that does not end with a line may have the begin of the next chunk's size.
        now, between = self._now, self._between_chunks and data[-1:] == b"\n"
        self.streamed = now if between and now is not None and now.sse and now.tokens else None
        if self._skip:
            self._skip = False
            self.parser = response_parser(self)

    @staticmethod
    def count_chunk(exchange: TappedExchange, data: bytes, now_ns: int) -> bool:
        """Count the events of a piece that is one whole chunk; False where it is none, or ends inside an event."""
        size_end = data.find(b"\r\n", 1, _MOST_SIZE_CHARS)
        try:
            size = int(data[:size_end], 16)
        except ValueError:
            return False
        if size_end + size + 4 != len(data) or data[-4:] != b"\n\n\r\n":
            return False
        ended = data.count(b"\n\n")
        exchange.got_bytes += size
        exchange.events += ended
        exchange.tokens += ended
        piece = data[size_end + 2 : -2]
        exchange.tail = _tail(exchange.tail, piece)
        exchange.kept.append(piece)
        if exchange.got_bytes > exchange.drop_at:
            exchange.drop_front()
        gap_ns = now_ns - exchange.last_ns
        if gap_ns > exchange.gap_ns:
            exchange.gap_ns = gap_ns
        exchange.last_ns = now_ns
        return True

    def end_of_data(self) -> None:
        """End an answer whose length only the end of the connection tells."""
        if self._now is not None and not self._framed:
            self.now_ns = time.monotonic_ns()
            self._complete(self._now)

    def on_message_begin(self) -> None:
        self._sse = self._framed = self._between_chunks = False
        self._now, self._headers = None, {}

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._sse = value.startswith(b"text/event-stream")
        elif name in _HEADERS:
            self._headers[name.decode()] = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200 or not self._open:
            return  # 100 Continue, or an answer to a request that could not be read
        exchange = self._now = self._open[0]
        exchange.status, exchange.sse, exchange.headers = status, self._sse, self._headers
        if self._sse and not self._headers:
            exchange.drop_at = STREAM_BYTES
        if exchange.method == "HEAD":
            self._skip = True
            self._complete(exchange)
        elif status in BODILESS:
            self._framed = True

    def on_body(self, data: bytes) -> None:
        exchange = self._now
        if exchange is None:
            return
        before = exchange.tail[2]
        exchange.got_bytes += len(data)
        exchange.tail = _tail(exchange.tail, data)
        self._keep(exchange, data)
        now = self.now_ns
        if not exchange.sse:
            exchange.first_ns = exchange.first_ns or now
            return
        ended = (before[-1:] + data).count(b"\n\n") or (before[-2:] + data).count(b"\n\r\n")
        if not ended:
            return
        if exchange.events == 0 and b'"content":""' in data:
            exchange.events = ended
            ended -= 1
            if not ended:
                return
        else:
            exchange.events += ended
        exchange.tokens += ended
        if exchange.first_ns:
            exchange.gap_ns = max(exchange.gap_ns, now - exchange.last_ns)
        else:
            exchange.first_ns = now
        exchange.last_ns = now

    @staticmethod
    def _keep(exchange: TappedExchange, data: bytes) -> None:
        """Keep a piece of a body: the front of an error response, else the end."""
        if not exchange.recorded and exchange.status < 400:
            return
        if exchange.status < 300 or exchange.got_bytes <= JSON_BYTES:
            exchange.kept.append(data)
        if exchange.status < 300 and exchange.got_bytes > exchange.drop_at:
            exchange.drop_front()

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        if self._now is not None:
            self._complete(self._now)

    def _complete(self, exchange: TappedExchange) -> None:
        self._now = None
        if not self._open or self._open[0] is not exchange:
            return
        self._open.popleft()
        exchange.last_ns = self.now_ns
        exchange.end("complete")
        self._sink.end(exchange)
