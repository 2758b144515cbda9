"""Blocking sockets with arrival timestamps; cooperative under gevent.

Where the kernel stamps packets (SO_TIMESTAMPNS), its stamp is used: a token's time is its packet's, however busy the
reading process was. For behaviours and workers only.
"""

from __future__ import annotations

import array
import fcntl
import socket
import ssl
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from loadchaos.core.tls import TlsSettings
from loadchaos.core.units import NS_PER_S
from loadchaos.core.urls import host_and_port, http_parts

if TYPE_CHECKING:
    from loadchaos.load.wire._native import Lane

RECEIVE_BYTES = 64 * 1024
MAX_IDLE_NS = 4_000_000_000
"""A connection idle longer is not used again: uvicorn, under most of these servers, closes after 5 s."""
CONNECT_LIMIT_S = 30.0

_TIMESTAMPNS = 35 if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
"""asm-generic/socket.h; Python's socket module has no name for it. Its value is a struct timespec of the wall clock.

Linux puts the arrival beside the bytes where a socket asks for it (for TCP since 4.13: commit 98aaa913b4ed)."""
_timespec = struct.Struct("qq")
ANCILLARY_BYTES = socket.CMSG_SPACE(_timespec.size)
"""Space that recvmsg(2) needs for one stamp."""
_CLOCK_STEP_NS = 1_000_000
_CONFIRMATIONS = 3
OLDEST_STAMP_NS = 60_000_000_000

ArrivalStamp = int | Sequence[tuple[int, int, bytes]]
"""Arrival time: monotonic ns where it was stamped when read, else recvmsg's ancillary data."""

ReadNow = Callable[[], tuple[bytes, ArrivalStamp, int, Any]]
"""Read what has arrived, with its time stamp; BlockingIOError if nothing has.

Where one read finds several packets, the time is that of the last one.
"""


@dataclass
class Origin:
    """Address of the server under load, with TLS and a gateway's path prefix. `base_url` may end in /v1 or not.
    Connections are made to `via` (host, port) where a proxy stands in the path; Host header and TLS name stay the
    server's. `blocked` counts connections that are being made or cannot send on.
    """

    base_url: str
    tls_context: ssl.SSLContext | None = None
    via: tuple[str, int] | None = None
    host: str = field(init=False)
    port: int = field(init=False)
    tls: bool = field(init=False)
    prefix: str = field(init=False)
    host_header: str = field(init=False)
    blocked: int = field(init=False, default=0)
    _addresses: list[tuple[socket.AddressFamily, tuple[str, int]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        parts = http_parts(self.base_url)
        self.tls = parts.scheme == "https"
        self.host, self.port = host_and_port(self.base_url)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.host_header = parts.netloc.rpartition("@")[2]
        if self.tls and self.tls_context is None:
            self.tls_context = TlsSettings().context()

    def path(self, path: str) -> str:
        return self.prefix + path

    def addresses(self) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        """Resolve the name once. A lookup per connection would be measured with the server."""
        if not self._addresses:
            found = socket.getaddrinfo(*(self.via or (self.host, self.port)), type=socket.SOCK_STREAM)
            self._addresses = [(f, (str(a[0]), int(a[1]))) for f, _, _, _, a in found]
        return self._addresses

    def forget_addresses(self) -> None:
        """Resolve again next time. After a failed connection the name may have moved."""
        self._addresses = []


class SocketWatcher(Protocol):
    """Reads a connection from an event loop for its exchange."""

    @property
    def closed_while_idle(self) -> bool | None:
        """True if the peer closed or sent data while idle; None if not watched."""

    def stop(self) -> None:
        """Stop watching: somebody else reads, or the connection is closed."""


class Connection:
    """One TCP or TLS connection. Errors are OSError. `receive` returns b"" when the peer closed."""

    __slots__ = (
        "_inner", "_plain", "_sock", "_target", "idle_since_ns", "lane", "number", "read_now", "stamped", "tls", "watcher",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, number: int, target: Origin, *, stamped: bool = False) -> None:
        """Wrap a connected socket. `stamped`: the kernel stamps its packets; inside TLS the stamps are lost."""
        self._sock, self._target = sock, target
        self._plain: Any = getattr(sock, "_sock", sock)  # gevent's socket holds the one that never waits for others
        self._inner: Any = getattr(sock, "_sslobj", None) if self._plain is not sock else None
        self.number = number
        self.idle_since_ns = 0
        self.tls = isinstance(sock, ssl.SSLSocket)
        self.stamped = stamped and not self.tls
        self.watcher: SocketWatcher | None = None
        self.lane: Lane | None = None
        self.read_now: ReadNow = (
            partial(_decrypted_at_once, self._inner.read)
            if self._inner is not None
            else _read_now(sock, self._plain, stamped=self.stamped)
        )

    @classmethod
    def open(
        cls, target: Origin, number: int, timeout_s: float, *, receive_buffer_bytes: int | None = None
    ) -> Connection:
        """Connect and shake hands; raises OSError when no address answers in time.

        `number`: that of the connection in its slot, from 1. `timeout_s` holds for each address. A small receive buffer
        makes the server feel that its client reads slowly.
        """
        failure: OSError | None = None
        target.blocked += 1
        try:
            for family, address in target.addresses():
                try:
                    return cls._connect_to(target, family, address, number, timeout_s, receive_buffer_bytes)
                except OSError as e:
                    failure = e
        finally:
            target.blocked -= 1
        target.forget_addresses()
        raise failure or OSError(f"{target.host} has no address")

    @classmethod
    def _connect_to(
        cls,
        target: Origin,
        family: socket.AddressFamily,
        address: tuple[str, int],
        number: int,
        timeout_s: float,
        receive_buffer_bytes: int | None,
    ) -> Connection:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            if receive_buffer_bytes is not None:  # before connecting: the window is agreed on there
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.settimeout(min(timeout_s, CONNECT_LIMIT_S))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamped = _ask_for_stamps(sock)
            if target.tls_context is not None and target.tls:
                sock = target.tls_context.wrap_socket(sock, server_hostname=target.host)
            # No timeout per read: it would cost a timer each; the sweeper looks after silence.
            sock.settimeout(None)
        except OSError:
            sock.close()
            raise
        return cls(sock, number, target, stamped=stamped)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, data: bytes) -> None:
        done = 0
        # Nearly always the kernel takes all of it at once, and whatever makes a socket cooperative can be passed by.
        if not self.tls:
            try:
                done = self._plain.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
        elif self._inner is not None:
            try:
                done = self._inner.write(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
        if done < len(data):
            self._target.blocked += 1
            try:
                self._sock.sendall(memoryview(data)[done:])
            finally:
                self._target.blocked -= 1

    def receive(self, most: int = RECEIVE_BYTES) -> tuple[int, bytes]:
        """Read up to `most` bytes. Returns (arrival in monotonic ns, data), with b"" when the peer closed."""
        if self.watcher is not None:
            self.watcher.stop()
        data = self._sock.recv(most)
        return time.monotonic_ns(), data

    def is_stale(self) -> bool:
        """True if the peer closed or sent bytes while the connection was idle."""
        if self.watcher is not None and self.watcher.closed_while_idle is not None:
            return self.watcher.closed_while_idle
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

    def shutdown(self) -> None:
        """Shut down from another thread: a waiting `receive` or `send` wakes up."""
        with suppress(OSError):  # the peer was first; the waiter wakes up all the same
            # Not SSLSocket.shutdown, which takes the TLS state from under the waiter.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Unread bytes make the kernel send a reset, as for a client that walks away."""
        if self.watcher is not None:
            self.watcher.stop()
        with suppress(OSError):  # nothing is left to be saved
            self._sock.close()

    def reset(self) -> None:
        """Close with a TCP reset: no linger, RFC 9293 3.10.4's abort."""
        with suppress(OSError):  # the peer was first
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


def _read_now(sock: socket.socket, plain: Any, *, stamped: bool) -> ReadNow:
    if isinstance(sock, ssl.SSLSocket):
        return partial(_decrypted, sock)
    if stamped:
        return partial(plain.recvmsg, RECEIVE_BYTES, ANCILLARY_BYTES, socket.MSG_DONTWAIT)
    return partial(_read_and_stamped, plain)


def _read_and_stamped(plain: Any) -> tuple[bytes, ArrivalStamp, int, Any]:
    data = plain.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
    return data, time.monotonic_ns(), 0, None


def _decrypted(sock: ssl.SSLSocket) -> tuple[bytes, ArrivalStamp, int, Any]:
    """Read what TLS has decrypted, stamped with the time of reading: TLS reads the packets' kernel stamps itself."""
    sock.settimeout(0)
    try:
        data = sock.recv(RECEIVE_BYTES)
        return data, time.monotonic_ns(), 0, None
    except ssl.SSLWantReadError as e:
        raise BlockingIOError from e
    finally:
        sock.settimeout(None)


def _decrypted_at_once(read: Callable[[int], bytes]) -> tuple[bytes, ArrivalStamp, int, Any]:
    try:
        data = read(RECEIVE_BYTES)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
        raise BlockingIOError from e
    except ssl.SSLError as e:
        if e.args[0] != ssl.SSL_ERROR_EOF:
            raise
        data = b""  # closed without a close_notify, as gevent's recv takes it
    return data, time.monotonic_ns(), 0, None


def unread_bytes(descriptor: int) -> int:
    """Bytes that have arrived and that nobody has read."""
    fcntl.ioctl(descriptor, termios.FIONREAD, _unread)
    return _unread[0]


_unread = array.array("i", [0])

Feed = Callable[[int, bytes], bool]
"""Receives what arrived at a time (monotonic ns); returns False when no more is wanted."""
Collect = Callable[[Connection, Feed], bool]
"""Feeds everything that comes, until no more is wanted (False) or the peer closed (True); raises OSError."""


def collect(connection: Connection, feed: Feed) -> bool:
    """Feed everything that arrives, by blocking reads (a `Collect`)."""
    while True:
        at_ns, data = connection.receive()
        if not data:
            return True
        if not feed(at_ns, data):
            return False


class Slot:
    """One user's connection pool: at most one idle connection. `collect` is how answers are read. `errors_in_row`: the
    user's failed requests since its last good one.
    """

    def __init__(self, target: Origin, collect: Collect = collect) -> None:
        self.target = target
        self.collect = collect
        self.opened = 0
        self.errors_in_row = 0
        self._idle: Connection | None = None

    def acquire(self, now_ns: int) -> tuple[Connection | None, bool]:
        """Take the idle connection if it is still good. Returns it or None, and True if a stale one was closed."""
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

    def release(self, connection: Connection, now_ns: int) -> None:
        connection.idle_since_ns = now_ns
        self._idle = connection

    def close(self) -> None:
        if self._idle is not None:
            self._idle.close()
            self._idle = None


def _ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives on a socket. Returns False where it cannot."""
    if _TIMESTAMPNS is None:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class StampClock:
    """Convert stamps to monotonic ns. `ahead_ns` is the monotonic clock minus the wall clock.

    Both are slewed alike, so they differ by one number until somebody sets the wall clock.
    """

    __slots__ = ("_disagreements", "ahead_ns")

    def __init__(self) -> None:
        self.ahead_ns = time.monotonic_ns() - time.time_ns()
        self._disagreements = 0

    def sync(self, now_ns: int, wall_ns: int) -> None:
        """Compare the clocks. Call it before converting, with `wall_ns` read right after `now_ns`."""
        ahead_ns = now_ns - wall_ns
        if ahead_ns > self.ahead_ns:
            self.ahead_ns = ahead_ns
        if ahead_ns > self.ahead_ns - _CLOCK_STEP_NS:
            self._disagreements = 0
        else:  # an interruption between both reads, or a clock set forward
            self._disagreements += 1
            if self._disagreements >= _CONFIRMATIONS:  # an interruption does not come each time
                self.ahead_ns, self._disagreements = ahead_ns, 0

    def arrival(self, stamp: ArrivalStamp, now_ns: int) -> int:
        """Convert the arrival time of something that was read before `now_ns`."""
        if isinstance(stamp, int):
            return stamp
        if not stamp:
            return now_ns
        seconds, ns = _timespec.unpack(stamp[0][2])
        at_ns: int = seconds * NS_PER_S + ns + self.ahead_ns
        # Anything else was stamped before somebody set the clock.
        return at_ns if now_ns - OLDEST_STAMP_NS < at_ns < now_ns else now_ns
