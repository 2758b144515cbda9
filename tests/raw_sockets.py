"""Servers and HTTP on raw sockets, for tests that decide about each byte and packet."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

Handler = Callable[[socket.socket], object]
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class ConnectionServer:
    """Runs a function on each connection, in a thread of its own; the connection ends with the function."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._peers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        return len(self._peers)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                peer, _ = self._listener.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._peers.append(peer)
                self._threads.append(threading.Thread(target=self._serve, args=(peer,), daemon=True))
                self._threads[-1].start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:  # the client went first
            self._handle(peer)

    def close(self) -> None:
        """Accept nothing more, and end the connections."""
        with contextlib.suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(5)
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def read_request(peer: socket.socket) -> bytes:
    """One request with its body; b"" when the client closes before its end."""
    data, end = b"", -1
    while end < 0 or len(data) < end:
        if not (piece := peer.recv(1 << 20)):
            return b""
        data += piece
        if end < 0 and b"\r\n\r\n" in data:
            head = data.partition(b"\r\n\r\n")[0]
            lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
            end = len(head) + 4 + (int(lengths[0].split(b":")[1]) if lengths else 0)
    return data


def reset(peer: socket.socket) -> None:
    """Close with RST."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
