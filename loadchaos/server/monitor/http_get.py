"""One HTTP GET, or one TCP connect, on a new connection. httpx takes four times the CPU (0.8 to 1.7 ms for a GET), and
the monitor shares a machine with the load's workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import httptools

from loadchaos.core.http_client import with_own_headers
from loadchaos.core.limits import MOST_ANSWER_BYTES
from loadchaos.core.tls import TlsSettings
from loadchaos.core.urls import DEFAULT_PORTS, host_and_port, http_parts

_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Endpoint:
    """Target of a GET, with its headers. `path` includes the URL's prefix and query."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


@dataclass(frozen=True)
class HttpResponse:
    """Result of one GET. `status` is known even when an error cut the body. `error`: None, or one of refused, timeout,
    reset, dns, unreachable, tls, protocol, with `: ` and details. `framed`: it told its length, so nothing is missing.
    """

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    took_ns: int
    error: str | None
    framed: bool = True


def parse_endpoint(url: str, tls: ssl.SSLContext | None = None, headers: Mapping[str, str] | None = None) -> Endpoint:
    """Split a URL; https without a context uses the system's certificates. Raises ValueError: it is no http(s) URL."""
    parts = http_parts(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    context = (tls or TlsSettings().context()) if parts.scheme == "https" else None
    return Endpoint(*host_and_port(url), path, context, with_own_headers(headers or {}))


@dataclass
class _Collector:
    """Collect headers and body of one response, as httptools' callbacks."""

    headers: dict[str, str] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)
    size: int = 0
    done: bool = False

    @property
    def framed(self) -> bool:
        return "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.size += len(data)
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.done = True


def describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError):  # also ETIMEDOUT
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionError):
        return "reset"
    if isinstance(error, socket.gaierror):
        return f"dns: {error.strerror}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls: {error.verify_message}"
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


@dataclass(frozen=True)
class _Connection:
    """`receive` gives what came, empty at the end. `close` is not orderly: nothing that was sent needs that."""

    send: Callable[[bytes], Awaitable[None]]
    receive: Callable[[], Awaitable[bytes]]
    close: Callable[[], None]


async def _connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> _Connection:
    """Connect. A bare socket, to an address without TLS, takes 27 us of CPU; the streams of asyncio take 125 us."""
    family = _family(endpoint.host)
    if tls is not None or family is None:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls)

        async def send(data: bytes) -> None:
            writer.write(data)

        return _Connection(send, partial(reader.read, _READ_BYTES), writer.transport.abort)
    loop, bare = asyncio.get_running_loop(), socket.socket(family, socket.SOCK_STREAM)
    bare.setblocking(False)
    try:
        # A connection to this machine stands after the first call: then the loop's own call returns at once.
        if bare.connect_ex((endpoint.host, endpoint.port)) != 0:
            await loop.sock_connect(bare, (endpoint.host, endpoint.port))
    except BaseException:
        bare.close()
        raise
    return _Connection(partial(loop.sock_sendall, bare), partial(loop.sock_recv, bare, _READ_BYTES), bare.close)


def _family(host: str) -> socket.AddressFamily | None:
    """Tell IPv4 from IPv6; None: it is a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return family
    return None


async def tcp_connect(endpoint: Endpoint, limit_s: float) -> tuple[int, str | None]:
    """Connect by TCP without TLS. Returns the duration in ns and the error, if any."""
    begin = time.monotonic_ns()
    try:
        async with asyncio.timeout(limit_s):
            connection = await _connect(endpoint, None)
    except OSError as e:
        return time.monotonic_ns() - begin, describe(e)
    took = time.monotonic_ns() - begin
    connection.close()
    return took, None


def response_parser(callbacks: object) -> httptools.HttpResponseParser:
    """Parser of responses that reads folded headers, which are obsolete and legal, as httpx, curl and our load do."""
    parser = httptools.HttpResponseParser(callbacks)
    parser.set_dangerous_leniencies(lenient_headers=True)
    return parser


async def get(endpoint: Endpoint, limit_s: float) -> HttpResponse:
    """GET an endpoint on a new connection. Never raises for what the server or the network does."""
    begin = time.monotonic_ns()
    collector = _Collector()
    parser = response_parser(collector)
    error: str | None = None
    connection: _Connection | None = None
    try:
        async with asyncio.timeout(limit_s):
            connection = await _connect(endpoint, endpoint.tls)
            lines = {"Host": endpoint.authority, "Accept": "*/*", "Connection": "close", **endpoint.headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            await connection.send(f"GET {endpoint.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            await _read(connection, parser, collector)
    except (OSError, httptools.HttpParserError, asyncio.IncompleteReadError, ValueError) as e:
        error = describe(e)
    finally:
        if connection is not None:
            connection.close()
    status = parser.get_status_code() or None
    took_ns = time.monotonic_ns() - begin
    return HttpResponse(status, collector.headers, b"".join(collector.body), took_ns, error, collector.framed)


async def _read(connection: _Connection, parser: httptools.HttpResponseParser, collector: _Collector) -> None:
    while not collector.done:
        data = await connection.receive()
        if not data:
            if collector.framed or not parser.get_status_code():
                raise ConnectionResetError("the connection ended inside the response")
            return  # a body without a length ends with its connection
        parser.feed_data(data)
        if collector.size > MOST_ANSWER_BYTES:
            raise ValueError(f"more than {MOST_ANSWER_BYTES} bytes")
