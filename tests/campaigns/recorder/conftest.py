"""A recording proxy in a thread of its own, between raw sockets on both sides."""

import asyncio
import json
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loadchaos.campaigns.recorder.channel import RecordingChannel
from loadchaos.campaigns.recorder.frames import RecordingSetup
from loadchaos.campaigns.recorder.proxy import StreamingProxy, Upstream
from loadchaos.campaigns.recorder.tap import ConnectionTap, TappedExchange
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, ConnectionServer, Handler, chunk, read_request
from tests.waiting import until

WAIT_S = 10.0


class SeenExchanges:
    def __init__(self) -> None:
        self.begun: list[TappedExchange] = []
        self.ended: list[TappedExchange] = []
        self.body_bytes = 0

    def next_id(self) -> int:
        return len(self.begun)

    def begin(self, exchange: TappedExchange) -> None:
        self.begun.append(exchange)

    def body(self, exchange: TappedExchange, data: bytes) -> None:
        self.body_bytes += len(data)

    def body_end(self, exchange: TappedExchange) -> None:
        pass

    def end(self, exchange: TappedExchange) -> None:
        self.ended.append(exchange)

    def outcomes(self, count: int = 1) -> list[str | None]:
        """Outcomes, as soon as there are so many."""
        until(lambda: len(self.ended) >= count, f"{count} ends")
        return [e.outcome for e in self.ended]


def begins(then: Handler = lambda _: None) -> Handler:
    """A server that begins a streamed answer."""

    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(SSE_HEAD + event("one"))
        then(c)

    return serve


class RunningProxy:
    """The proxy with its loop in a thread."""

    def __init__(
        self, upstream_port: int, observe: Callable[[], ConnectionTap | None], tls: ssl.SSLContext | None = None
    ) -> None:
        self.loop = uvloop.new_event_loop()
        self.proxy = StreamingProxy(Upstream("127.0.0.1", upstream_port, tls), observe)
        self.mistakes: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.mistakes.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self.proxy.listen("127.0.0.1", 0), self.loop).result(WAIT_S)

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        client.settimeout(WAIT_S)
        return client

    def settle(self, links: int = 0) -> int:
        """Number of links, when it has come down to `links`."""
        until(lambda: len(self.proxy.links) <= links, f"{links} links")
        return len(self.proxy.links)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.proxy.close(0), self.loop).result(WAIT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()
        assert self.mistakes == []


Between = Callable[..., tuple[RunningProxy, SeenExchanges]]


@pytest.fixture
def between(unused_port: int) -> Iterator[Between]:
    """Starts a proxy in front of a server with this handler; `observe` replaces the tap."""
    closing: list[Any] = []

    def start(handler: Handler | None, observe: Callable[[], Any] | None = None) -> tuple[RunningProxy, SeenExchanges]:
        sink = SeenExchanges()
        port = unused_port
        if handler is not None:
            server = ConnectionServer(handler)
            port = server.port
            closing.append(server)
        running = RunningProxy(port, observe or (lambda: ConnectionTap(sink)))
        closing.append(running)
        return running, sink

    yield start
    for one in reversed(closing):
        one.close()


def post(body: bytes, *more: bytes) -> bytes:
    """A chat request."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b"".join(m + b"\r\n" for m in more) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def whole(text: str) -> bytes:
    """Body of a right answer that is not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()


def plain(body: bytes = whole("yes"), status: bytes = b"200 OK") -> bytes:
    """An answer with a length."""
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def event(text: str | None, finish: str | None = None) -> bytes:
    """A chunk with one event of a stream."""
    delta = b"{}" if text is None else b'{"content":"%s"}' % text.encode()
    reason = b"null" if finish is None else b'"%s"' % finish.encode()
    return chunk(b'data: {"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n' % (delta, reason))


DONE = chunk(b"data: [DONE]\n\n")


def read_all(connection: socket.socket) -> bytes:
    """All bytes up to the end of the connection."""
    data = b""
    while more := connection.recv(1 << 20):
        data += more
    return data


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        more = connection.recv(1 << 20)
        assert more, f"the connection ended after {data!r}"
        data += more
    return data


def setup_of(folder: Path) -> dict[str, Any]:
    return {
        "folder": str(folder), "keep_s": 600.0, "max_bytes": 64 << 20, "bodies": False, "upstream": "http://x",
        "recording": "abcd1234", "key": secrets.token_hex(32),
    }  # fmt: skip


class Recording:
    """A proxy that records into a folder, with its writer process."""

    def __init__(self, folder: Path, upstream_port: int, setup: Mapping[str, Any]) -> None:
        self.folder = folder
        self.notices: list[dict[str, Any]] = []
        self.setup = RecordingSetup(**{**setup_of(folder), **setup})
        self.channel = RecordingChannel(self.setup, self.notices.append)
        self.proxy = RunningProxy(upstream_port, lambda: ConnectionTap(self.channel))
        self.call(self.channel.start())
        self._running = asyncio.run_coroutine_threadsafe(self.channel.run(), self.proxy.loop)

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.proxy.loop).result(WAIT_S)

    def rows(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Rows of a kind, as soon as there are so many."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            lines = b"".join(p.read_bytes() for p in sorted(self.folder.rglob("segment-*.jsonl"))).split(b"\n")
            found[:] = (row for row in map(json.loads, lines[:-1]) if row["row"] == kind)
            return len(found) >= count

        until(there, f"{count} rows {kind}")
        return found

    def notice(self, what: str) -> dict[str, Any]:
        return until(lambda: next((n for n in self.notices if n["what"] == what), None), f"the notice {what}")

    def freeze(self, reason: str) -> Path:
        self.proxy.loop.call_soon_threadsafe(self.channel.freeze, reason)
        return Path(self.notice("frozen")["path"])

    def send(self, body: bytes, *headers: bytes, end: bytes = b"") -> bytes:
        """Send one request; returns the answer."""
        with self.proxy.connect() as client:
            client.sendall(post(body, *headers, b"Connection: close"))
            return read_until(client, end) if end else read_all(client)

    def close(self) -> None:
        self._running.cancel()
        self.call(self.channel.close())
        self.proxy.close()


StartRecording = Callable[..., Recording]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[StartRecording]:
    """Starts a proxy that records what it passes on to a server with this handler."""
    closing: list[Any] = []

    def start(handler: Handler, **setup: Any) -> Recording:
        server = ConnectionServer(handler)
        made = Recording(tmp_path / "out", server.port, setup)
        closing.extend([server, made])
        return made

    yield start
    for one in reversed(closing):
        one.close()


def serve_answers(connection: socket.socket) -> None:
    """Stream two tokens for each request, or answer whole."""
    while request := read_request(connection):
        if b'"stream":true' in request:
            connection.sendall(SSE_HEAD + event("one") + event("two") + event(None, "stop") + DONE + LAST_CHUNK)
        else:
            connection.sendall(plain(whole("three words here")))
        if b"Connection: close" in request:
            return
