"""One GET on a connection of its own, as cheap as asyncio allows: what probes and scrapes are made of."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

_READ_BYTES = 1 << 16
_LONGEST_BODY_BYTES = 32 << 20


@dataclass(frozen=True)
class Endpoint:
    """Where a URL leads: host, port, path with the URL's own prefix, and how to get there."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True)
class HttpResponse:
    """What came of one GET. `error` is None, or one of refused, timeout, reset, dns, unreachable, tls, protocol, then
    `: ` and more. With an error `status` may still be known (half a body); `took_ns` counts from before the connect.
    `whole`: its length was told, so that nothing is missing; else its connection ended it, and may have cut it.
    """

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    took_ns: int
    error: str | None
    whole: bool = True


def place(url: str, tls: ssl.SSLContext | None = None) -> Endpoint:
    """Take a URL apart; https without a context gets the system's trust. ValueError when it is no http(s) URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a URL such as http://127.0.0.1:8000 was expected (got {url!r})")
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    context = (tls or ssl.create_default_context()) if secure else None
    return Endpoint(parts.hostname, parts.port or (443 if secure else 80), path, context)


@dataclass
class _Collector:
    """httptools' callbacks: headers and body of one response."""

    headers: dict[str, str] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)
    size: int = 0
    done: bool = False

    @property
    def framed(self) -> bool:
        """Whether the answer says where it ends."""
        return "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.size += len(data)
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.done = True


def describe(error: BaseException) -> str:
    """An exception of the network in the few words that `HttpResponse.error` has."""
    if isinstance(error, TimeoutError):  # also ETIMEDOUT
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionError):
        return "reset"
    if isinstance(error, socket.gaierror):
        return f"dns: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return f"tls: {error.reason or error}"
    if isinstance(error, OSError):
        # asyncio joins the errors of several addresses into one text without an errno of its own.
        text = str(error)
        if "refused" in text.lower():
            return "refused"
        number = errno.errorcode.get(error.errno or 0, "")
        return f"unreachable: {number or text}"
    return f"protocol: {error}"


async def connect(where: Endpoint, limit_s: float) -> tuple[int, str | None]:
    """A TCP connect and nothing else (no TLS): how long it took in ns, and the error if there was one."""
    begin = time.monotonic_ns()
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(where.host, where.port)
    except OSError as e:
        return time.monotonic_ns() - begin, describe(e)
    took = time.monotonic_ns() - begin
    writer.transport.abort()  # nothing was sent: no need for a farewell
    return took, None


async def get(where: Endpoint, headers: Mapping[str, str], limit_s: float) -> HttpResponse:
    """GET it on a new connection; never raises for what the server or the network does."""
    begin = time.monotonic_ns()
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    error: str | None = None
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(where.host, where.port, ssl=where.tls)
            lines = {"Host": where.authority, "Accept": "*/*", "Connection": "close", **headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(f"GET {where.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            await _read(reader, parser, collector)
    except (OSError, httptools.HttpParserError, asyncio.IncompleteReadError, ValueError) as e:
        error = describe(e)
    finally:
        if writer is not None:
            writer.transport.abort()
    status = parser.get_status_code() or None
    took_ns = time.monotonic_ns() - begin
    return HttpResponse(status, collector.headers, b"".join(collector.body), took_ns, error, collector.framed)


async def _read(reader: asyncio.StreamReader, parser: httptools.HttpResponseParser, collector: _Collector) -> None:
    while not collector.done:
        data = await reader.read(_READ_BYTES)
        if not data:
            if collector.framed or not parser.get_status_code():
                raise ConnectionResetError("the connection ended inside the answer")
            return  # a body without a length ends with its connection
        parser.feed_data(data)
        if collector.size > _LONGEST_BODY_BYTES:
            raise ValueError(f"more than {_LONGEST_BODY_BYTES} bytes")
