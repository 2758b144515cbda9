"""Blocking sockets with a stamp on every arrival; cooperative when gevent has patched the process, and none the wiser.

Where the kernel stamps packets itself (wire/stamps.py), its stamp is taken: a token has come when its packet came, however
busy the process was that read it. For behaviours and users only: everybody else reads the same bytes through the sans-I/O
parsers beside this file.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from loadchaos.load.wire import timestamps

RECEIVE_BYTES = 64 * 1024
MAX_IDLE_NS = 4_000_000_000
"""A connection idle longer is not used again: uvicorn, under most of these servers, closes after 5 s."""
CONNECT_LIMIT_S = 30.0

ReadNow = Callable[[], tuple[bytes, timestamps.Told, int, Any]]
"""What is there (b"" when the peer closed) and when it came, as recvmsg gives it; raises BlockingIOError where that is
nothing. Where one read finds several packets, the time is that of the last one."""


@dataclass
class Origin:
    """Where requests go: address, TLS and the path prefix of a gateway. `base_url` may end in /v1 or not.

    Connections are made to `via` (host, port) where something stands in the path; who is meant stays the same.
    `held_up` counts those who connect to it now, or have not got rid of all they send.
    """

    base_url: str
    tls_context: ssl.SSLContext | None = None
    via: tuple[str, int] | None = None
    host: str = field(init=False)
    port: int = field(init=False)
    tls: bool = field(init=False)
    prefix: str = field(init=False)
    host_header: str = field(init=False)
    held_up: int = field(init=False, default=0)
    _addresses: list[tuple[socket.AddressFamily, tuple[str, int]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"a URL such as http://127.0.0.1:8000 was expected (got {self.base_url!r})")
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.host_header = parts.netloc.rpartition("@")[2]
        if self.tls and self.tls_context is None:
            self.tls_context = ssl.create_default_context()

    def path(self, path: str) -> str:
        """`/v1/chat/completions` behind the prefix."""
        return self.prefix + path

    def addresses(self) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        """Resolved once, because a resolver asked for each connection would be measured along with the server."""
        if not self._addresses:
            found = socket.getaddrinfo(*(self.via or (self.host, self.port)), type=socket.SOCK_STREAM)
            self._addresses = [(f, (str(a[0]), int(a[1]))) for f, _, _, _, a in found]
        return self._addresses

    def forget_addresses(self) -> None:
        """Resolve again next time (after a connection failed: the name may have moved)."""
        self._addresses = []


class ReadWatcher(Protocol):
    """Who reads a connection for its call, from elsewhere (see `Collect`)."""

    @property
    def gone(self) -> bool | None:
        """Whether the peer closed or sent something while nobody asked; None where it was not looked after."""

    def stop(self) -> None:
        """Let go of it: somebody else reads, or it is closed."""


class Connection:
    """One connection. Errors are OSError (ssl.SSLError is one), an end by the peer is b"" from `receive`."""

    __slots__ = ("_plain", "_sock", "_target", "idle_since_ns", "number", "read_now", "stamped", "tls", "watch")

    def __init__(self, sock: socket.socket, number: int, target: Origin, *, stamped: bool = False) -> None:
        """`stamped`: the kernel tells when packets came (stamps.ask); inside TLS nobody hears it."""
        self._sock, self._target = sock, target
        self._plain: Any = getattr(sock, "_sock", sock)  # gevent's socket holds the one that never waits for others
        self.number = number
        self.idle_since_ns = 0
        self.tls = isinstance(sock, ssl.SSLSocket)
        self.stamped = stamped and not self.tls
        self.watch: ReadWatcher | None = None
        self.read_now: ReadNow = _read_now(sock, self._plain, stamped=self.stamped)

    @classmethod
    def open(
        cls, target: Origin, number: int, limit_s: float, *, receive_buffer_bytes: int | None = None
    ) -> Connection:
        """Connect (and shake hands); raises OSError when no address answers within `limit_s`.

        A small `receive_buffer_bytes` lets a client that reads slowly be felt by the server.
        """
        failure: OSError | None = None
        target.held_up += 1
        try:
            for family, address in target.addresses():
                try:
                    return cls._to(target, family, address, number, limit_s, receive_buffer_bytes)
                except OSError as e:
                    failure = e
        finally:
            target.held_up -= 1
        target.forget_addresses()
        raise failure or OSError(f"{target.host} has no address")

    @classmethod
    def _to(
        cls,
        target: Origin,
        family: socket.AddressFamily,
        address: tuple[str, int],
        number: int,
        limit_s: float,
        receive_buffer_bytes: int | None,
    ) -> Connection:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            if receive_buffer_bytes is not None:  # before connecting: the window is agreed on there
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.settimeout(min(limit_s, CONNECT_LIMIT_S))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamped = timestamps.ask(sock)
            if target.tls_context is not None and target.tls:
                sock = target.tls_context.wrap_socket(sock, server_hostname=target.host)
            # No timeout per read: it would cost a timer each; the sweeper looks after silence.
            sock.settimeout(None)
        except OSError:
            sock.close()
            raise
        return cls(sock, number, target, stamped=stamped)

    def fileno(self) -> int:
        """Its file descriptor."""
        return self._sock.fileno()

    def send(self, data: bytes) -> None:
        """Send all of it."""
        done = 0
        if not self.tls:
            # Nearly always the kernel takes all of it at once, and whatever makes a socket cooperative can be passed by.
            try:
                done = self._plain.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
        if done < len(data):
            self._target.held_up += 1
            try:
                self._sock.sendall(memoryview(data)[done:])
            finally:
                self._target.held_up -= 1

    def receive(self, most: int = RECEIVE_BYTES) -> tuple[int, bytes]:
        """What came, `most` bytes of it, with its arrival in monotonic ns taken at once; b"" when the peer closed."""
        if self.watch is not None:
            self.watch.stop()
        data = self._sock.recv(most)
        return time.monotonic_ns(), data

    def is_stale(self) -> bool:
        """Whether the peer has closed, or sent what nobody asked for, while we were not looking."""
        if self.watch is not None and self.watch.gone is not None:
            return self.watch.gone
        self._sock.settimeout(0)
        try:
            if isinstance(self._sock, ssl.SSLSocket):
                self._sock.read(1)
            else:
                self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        finally:
            self._sock.settimeout(None)
        return True

    def end(self) -> None:
        """End it from another thread or greenlet: whoever waits in `receive` or `send` wakes up."""
        try:
            # Not SSLSocket.shutdown, which takes the TLS state from under the waiter.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was first; the waiter wakes up all the same

    def close(self) -> None:
        """Close; unread bytes make the kernel send a reset, as a client that walks away does."""
        if self.watch is not None:
            self.watch.stop()
        try:
            self._sock.close()
        except OSError:
            pass  # nothing is left to be saved

    def reset(self) -> None:
        """Close with a reset, whatever was read: no linger, RFC 9293 3.10.4's abort."""
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass  # the peer was first
        self.close()

    def end_sending(self) -> None:
        """Close our half: the peer reads an end and may still answer."""
        self._sock.shutdown(socket.SHUT_WR)


def _read_now(sock: socket.socket, plain: Any, *, stamped: bool) -> ReadNow:
    if isinstance(sock, ssl.SSLSocket):
        return partial(_decrypted, sock)
    if stamped:
        return partial(plain.recvmsg, RECEIVE_BYTES, timestamps.ROOM_BYTES, socket.MSG_DONTWAIT)
    return partial(_read_and_stamped, plain)


def _read_and_stamped(plain: Any) -> tuple[bytes, timestamps.Told, int, Any]:
    data = plain.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
    return data, time.monotonic_ns(), 0, None


def _decrypted(sock: ssl.SSLSocket) -> tuple[bytes, timestamps.Told, int, Any]:
    """What TLS has for us already. Its packets' stamps are read by it, so the time is that of reading."""
    sock.settimeout(0)
    try:
        data = sock.recv(RECEIVE_BYTES)
        return data, time.monotonic_ns(), 0, None
    except ssl.SSLWantReadError as e:
        raise BlockingIOError from e
    finally:
        sock.settimeout(None)


Take = Callable[[int, bytes], bool]
"""Takes in what arrived at a time (monotonic ns); whether more is wanted."""
Collect = Callable[[Connection, Take], bool]
"""Hands over everything that comes, until no more is wanted (False) or the peer closed (True); raises OSError."""


def collect(connection: Connection, take: Take) -> bool:
    """By blocking reads: see `Collect`."""
    while True:
        at_ns, data = connection.receive()
        if not data:
            return True
        if not take(at_ns, data):
            return False


class Slot:
    """One user's place: at most one idle connection, kept for the next request; `collect` is how its answers are read."""

    def __init__(self, target: Origin, collect: Collect = collect) -> None:
        self.target = target
        self.collect = collect
        self.opened = 0
        self._idle: Connection | None = None

    def take(self, now_ns: int) -> tuple[Connection | None, bool]:
        """The idle connection when it is still good, and whether one was thrown away because the peer had closed it."""
        kept, self._idle = self._idle, None
        if kept is None:
            return None, False
        if now_ns - kept.idle_since_ns > MAX_IDLE_NS:
            kept.close()
            return None, False
        if kept.is_stale():
            kept.close()
            return None, True
        return kept, False

    def give_back(self, connection: Connection, now_ns: int) -> None:
        """Keep a connection whose exchange ended cleanly."""
        connection.idle_since_ns = now_ns
        self._idle = connection

    def close(self) -> None:
        """Drop the idle connection."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None
