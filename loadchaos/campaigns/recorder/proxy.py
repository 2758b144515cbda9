"""Pass bytes between clients and the upstream server, unchanged. Each client connection has an upstream connection of
its own. So HTTP pipelining, upgrades, trailers and half-closed connections work as without the proxy, and nothing is
parsed before it is passed on. A reset on one side becomes a reset on the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, cast

from loadchaos.campaigns.recorder.tap import ConnectionTap

LINGER_S = 5.0
"""Time for which a connection is read after its end: unread data would reset it, and the client would lose the answer."""
CONNECT_S = 10.0
HIGH_WATER_BYTES = 256 * 1024
"""Data that waits for a slow side before the other side is no longer read."""
_RESET = struct.pack("ii", 1, 0)
_BODY = (
    b'{"error":{"message":"loadchaos record: the upstream server does not accept connections",'
    b'"type":"bad_gateway","code":502}}'
)
BAD_GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (len(_BODY), _BODY)
)


@dataclass(frozen=True)
class Upstream:
    """Address of the server behind the proxy. `tls_name`: its name in TLS, where that is not `host`."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    tls_name: str | None = None


class Link:
    """One client connection and its upstream connection."""

    __slots__ = ("_ended", "_observe", "client", "observer", "proxy", "upstream")

    def __init__(self, proxy: StreamingProxy) -> None:
        self.proxy = proxy
        self.client = ClientSide(self)
        self.upstream = UpstreamSide(self)
        self.client.other, self.upstream.other = self.upstream, self.client
        self.observer: ConnectionTap | None = None
        self._observe = proxy.observe
        self._ended = False

    def start(self) -> None:
        with self._guarded():
            self.observer = self._observe()
        self.proxy.links.add(self)
        self.proxy.spawn(self._connect())

    async def _connect(self) -> None:
        to = self.proxy.upstream
        try:
            async with asyncio.timeout(CONNECT_S):
                name = to.tls_name or to.host if to.tls else None
                await asyncio.get_running_loop().create_connection(
                    lambda: self.upstream, to.host, to.port, ssl=to.tls, server_hostname=name
                )
        except (OSError, TimeoutError) as e:
            self.proxy.on_refused(_reason(e))
            self.client.refuse()
            return
        if self.client.gone:
            self.upstream.reset()
        else:
            self.client.release()
            if self.client.ended:
                self.upstream.finish_writing()

    def feed_request(self, data: bytes) -> None:
        if self.observer is not None:
            with self._guarded():
                self.observer.feed_request(data)

    @property
    def answer_is_cut(self) -> bool:
        return self.observer is None or self.observer.answering

    def end(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            if self.observer is not None:
                with self._guarded():
                    self.observer.end(reason)

    def close(self) -> None:
        if self.client.gone and (self.upstream.gone or self.upstream.transport is None):
            self.proxy.links.discard(self)
            self.observer = None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever the observer cannot read, the bytes are passed on
            self.lose()

    def lose(self) -> None:
        self.observer = None
        self.proxy.observers_lost += 1


class _Side(asyncio.Protocol):
    """Common part of both sides of a link."""

    other: _Side

    def __init__(self, link: Link) -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self.gone = False
        self.ended = False
        self._paused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        handle = transport.get_extra_info("socket")
        if handle is not None:
            with contextlib.suppress(OSError):  # a connection that is gone already
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pause_writing(self) -> None:
        self.other.pause()

    def resume_writing(self) -> None:
        self.other.resume()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.gone:
            self.transport.write(data)

    def pause(self) -> None:
        """Stop reading this side; each reason counts."""
        self._paused += 1
        if self._paused == 1 and self.transport is not None and not self.gone:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read this side again when no reason against it is left."""
        self._paused -= 1
        if self._paused == 0 and self.transport is not None and not self.gone:
            self.transport.resume_reading()

    def finish_writing(self) -> None:
        """Send the end of the data; close with TLS, which knows no half-close."""
        if self.transport is None or self.gone or self.transport.is_closing():
            return
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.close()
        except (OSError, RuntimeError):
            self.reset()

    def reset(self) -> None:
        if self.transport is None or self.gone:
            return
        handle = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):  # a connection that is gone already
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class ClientSide(_Side):
    """Connection of a client."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._refused = False
        self._discarding = False
        self._early: list[bytes] | None = []  # until the upstream server has accepted or refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.link.start()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        if self._early is not None:
            if not self._early:
                self.pause()  # until the upstream server has accepted; uvloop cannot pause in connection_made
            self._early.append(data)
            return
        if not self._refused:
            self.link.upstream.write(data)
            self.link.feed_request(data)
            return
        self.link.feed_request(data)
        self.link.end("refused")
        self.write(BAD_GATEWAY)
        self.finish()

    def eof_received(self) -> bool:
        self.ended = True
        if self._early is not None:
            return True
        if self._refused or self._discarding or self.link.upstream.ended:
            return False
        self.link.upstream.finish_writing()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.link.end("client_closed" if exc is None else "client_reset")
        if exc is None and not self.link.upstream.ended and self.ended:
            self.link.upstream.finish_writing()
        self.link.upstream.reset()
        self.link.close()

    def refuse(self) -> None:
        """Answer 502 to the first bytes of the client."""
        self._refused = True
        self.release()
        if self.ended:
            self._close()
        else:
            self._close_later()

    def release(self) -> None:
        """Pass on what came while the upstream connection was made."""
        early, self._early = self._early or [], None
        if early:
            self.resume()
        for data in early:
            self.data_received(data)

    def finish(self) -> None:
        """Send the end, and discard what the client still sends, for a while."""
        self._discarding = True
        if self._paused > 0:
            self._paused = 1
            self.resume()
        self.finish_writing()
        if self.ended:
            self._close()
        else:
            self._close_later()

    def _close_later(self) -> None:
        asyncio.get_running_loop().call_later(LINGER_S, self._close)

    def _close(self) -> None:
        if self.transport is not None and not self.gone:
            self.transport.close()


class UpstreamSide(_Side):
    """Connection to the upstream server."""

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; this runs for each token."""
        link = self.link
        client = link.client
        if client.transport is not None and not client.gone:
            client.transport.write(data)
        observer = link.observer
        if observer is not None:
            try:
                observer.feed_answer(data)
            except Exception:  # noqa: BLE001 - whatever the observer cannot read, the bytes are passed on
                link.lose()

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        cut = self.link.answer_is_cut
        self.gone = self.ended = True
        if self.link.client.ended:  # the server ends a request whose client has left
            self.link.end("client_closed")
        self.link.end("upstream_closed" if exc is None else "upstream_reset")
        if exc is not None and cut:
            self.link.client.reset()
        else:
            self.link.client.finish()
        self.link.close()


def _reason(e: OSError) -> str:
    if isinstance(e, TimeoutError):
        return f"no answer in {CONNECT_S:g} s"
    if isinstance(e, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({e.verify_message}); --ca FILE trusts another one"
    return e.strerror or str(e)


class StreamingProxy:
    """Listens, and links every client to the upstream server."""

    def __init__(self, upstream: Upstream, observe: Callable[[], ConnectionTap | None]) -> None:
        self.upstream = upstream
        self.observe = observe
        self.links: set[Link] = set()
        self.observers_lost = 0
        self.on_refused: Callable[[str], None] = lambda _: None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Link(self).client, host, port, backlog=4096
        )
        return int(self._server.sockets[0].getsockname()[1])

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, grace_s: float) -> None:
        """Stop listening, wait for open answers, then close all connections."""
        if self._server is not None:
            self._server.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while any(link.observer is not None and link.observer.answering for link in self.links):
            if loop.time() >= until:
                break
            await asyncio.sleep(0.05)
        for link in list(self.links):
            link.client.reset() if link.answer_is_cut else link.client.finish_writing()
            link.upstream.reset()
        for task in list(self._tasks):
            task.cancel()
