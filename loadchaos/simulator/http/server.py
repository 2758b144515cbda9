"""HTTP server of the embedded server: an asyncio protocol on httptools. A web framework would be the bottleneck. A
request is an `HttpExchange`, which the API answers whole or as a stream of chunks.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs

import httptools
import orjson

KEEP_ALIVE_S = 5.0  # uvicorn's timeout_keep_alive: pooled connections idle for longer are closed by the server
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@functools.lru_cache(maxsize=1)
def _date_lines(second: int) -> bytes:
    return b"date: " + formatdate(second, usegmt=True).encode() + b"\r\nserver: uvicorn\r\n"


class HttpExchange:
    """One request and its answer. `send` answers whole; `start`, `write` and `end` answer in chunks. `on_disconnect` is
    called when the client leaves before the end; `on_resume` when a slow client reads again (while it does not,
    `paused` is True and the API should hold its chunks back and merge them, as vLLM does).
    """

    __slots__ = (
        "body", "connection", "done", "headers", "method", "on_disconnect", "on_resume", "path", "query", "started",
        "status", "target",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, method: str, target: str, headers: Mapping[str, str]) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.path, _, query = target.partition("?")
        self.query = parse_qs(query, keep_blank_values=True)
        self.headers = headers
        self.body = b""
        self.status = 0
        self.started = False
        self.done = False
        self.on_disconnect: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        return self.connection.paused

    def option(self, name: str, default: str) -> str:
        """Return the last value of a query parameter."""
        return self.query.get(name, [default])[-1]

    def send(
        self, status: int, body: bytes = b"", content_type: str | None = "application/json", close: bool = False
    ) -> None:
        """Answer whole. `close` ends the connection afterwards, as uvicorn does after an unhandled exception."""
        if self.done or self.started:
            return
        kind = f"content-type: {content_type}\r\n".encode() if content_type else b""
        ending = b"connection: close\r\n" if close else b""
        length = b"content-length: %d\r\n" % len(body)
        self._head(status, length + kind + ending, b"" if self.method == "HEAD" else body)
        self._finish(close)

    def send_json(self, data: object, status: int = 200) -> None:
        self.send(status, orjson.dumps(data))

    def start(self, status: int = 200, content_type: str = "text/event-stream; charset=utf-8") -> None:
        if not self.done and not self.started:
            self._head(status, f"content-type: {content_type}\r\ntransfer-encoding: chunked\r\n".encode(), b"")

    def write(self, data: bytes) -> None:
        if data and not self.done:
            self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, last: bytes = b"") -> None:
        self.write(last)
        if not self.done:
            self.connection.write(b"0\r\n\r\n")
            self._finish(close=False)

    def cut(self) -> None:
        """Break a chunked answer off: the client gets an incomplete body."""
        if not self.done:
            self._finish(close=True)

    def _head(self, status: int, rest: bytes, body: bytes) -> None:
        self.started = True
        self.status = status
        reason = _REASONS.get(status, "")
        self.connection.server.log_access(self.connection.peer, self, reason)
        self.connection.write(
            b"HTTP/1.1 %d %b\r\n%b%b\r\n%b" % (status, reason.encode(), _date_lines(int(time.time())), rest, body)
        )

    def _finish(self, close: bool) -> None:
        self.done = True
        self.on_disconnect = self.on_resume = None
        self.connection.finished(self, close)


DONE = b"data: [DONE]\n\n"
"""Last event of a stream of completions."""


def error_event(error: Mapping[str, object]) -> bytes:
    """Return an error as an event of a stream, with blanks as real servers write it."""
    return f"data: {json.dumps({'error': dict(error)})}\n\n".encode()


Handler = Callable[[HttpExchange], None]


class ClientConnection(asyncio.Protocol):
    """One client connection with a keep-alive of 5 s. It parses requests and hands them to the handler one at a time."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[HttpExchange, bool]] = deque()
        self._current: HttpExchange | None = None
        self._keep_alive = True
        self._idle: asyncio.TimerHandle | None = None
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.peer = ""
        self._unfinished = False  # a part of a request was received
        self._ignored = server.full
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, though they have all of their methods
        self._transport = cast("asyncio.Transport", transport)
        self.server.connections.add(self)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unix"

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.server.connections.discard(self)
        self.server.unfinished += self._unfinished
        self._stop_idle()
        self._transport = None
        current, self._current = self._current, None
        self._waiting.clear()
        if current is not None and not current.done:
            current.done = True
            if current.on_disconnect is not None:
                current.on_disconnect()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._current is not None and self._current.on_resume is not None:
            self._current.on_resume()

    def data_received(self, data: bytes) -> None:
        self._stop_idle()
        if self._ignored:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                body = b"Invalid HTTP request received."
                self.write(
                    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
                    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
                )
                self._transport.close()

    def on_message_begin(self) -> None:
        self._unfinished = True
        self._target = b""
        self._headers = {}
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("ascii")
        exchange = HttpExchange(self, method, self._target.decode("utf-8", "replace"), self._headers)
        exchange.body = b"".join(self._body)
        self._body = []
        self._unfinished = False
        self._waiting.append((exchange, self._parser.should_keep_alive()))
        self._next()

    # the exchange calls these

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, exchange: HttpExchange, close: bool) -> None:
        if exchange is not self._current:
            return
        self._current = None
        if self._transport is None:
            return
        if close or not self._keep_alive or self.server.closing:
            self._transport.close()
            return
        self._idle = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self.close)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)

    def close(self) -> None:
        """Close after what was written has been sent."""
        self._stop_idle()
        if self._transport is not None:
            self._transport.close()

    @property
    def busy(self) -> bool:
        return self._current is not None

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _next(self) -> None:
        if self._current is not None or not self._waiting:
            return
        self._stop_idle()
        self._current, self._keep_alive = self._waiting.popleft()
        self.server.handler(self._current)


class HttpServer:
    """A listener that knows its connections. A dying server can then close them in order."""

    def __init__(self, handler: Handler, quiet: bool = False, most_unfinished: int = 0) -> None:
        self.handler = handler
        self.unfinished = 0  # connections that were closed in the middle of a request
        self._most_unfinished = most_unfinished
        self.connections: set[ClientConnection] = set()
        self.closing = False
        self.port = 0
        self._quiet = quiet
        self._server: asyncio.Server | None = None

    @property
    def full(self) -> bool:
        """True if a defect leaves no place for a new connection."""
        return bool(self._most_unfinished) and self.unfinished >= self._most_unfinished

    async def listen(self, host: str, port: int, *, reserved: bool = False) -> int:
        """Listen and return the port; port 0 chooses a free one. `reserved`: a socket that does not listen is bound to
        the port, with SO_REUSEPORT.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self), host, port, backlog=2048, reuse_port=reserved
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    def log_access(self, peer: str, exchange: HttpExchange, reason: str) -> None:
        if not self._quiet:
            text = f'INFO:     {peer} - "{exchange.method} {exchange.target} HTTP/1.1" {exchange.status} {reason}\n'
            sys.stdout.write(text)
            sys.stdout.flush()

    def close_listener(self) -> None:
        """Refuse new connections and close idle ones. Connections with a request end after their answer."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()
