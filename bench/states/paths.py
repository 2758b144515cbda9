"""TCP proxy in a thread: balances connections, can lose all packets.

Lost packets are not read, and the queue of new connections is kept full, so that the kernel drops their SYNs and no
side is notified. No firewall rule is needed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle

_READ_BYTES = 1 << 16
_LOOK_S = 0.02
_FILLERS = 4


class Path(threading.Thread):
    """Proxy at `url` to `ports`; `lost` is true while packets are lost."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._turns = cycle(ports)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.lost = threading.Event()
        self._over = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        while not self._over.is_set():
            if self.lost.is_set():
                time.sleep(_LOOK_S)
                continue
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif (
                    isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() >= 0
                ):  # not ended by its other half
                    self._pass(key.fileobj, key.data)
        self._listener.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", next(self._turns)), 1)
        except OSError:  # what a balancer does whose server is gone
            client.close()
            return
        for a, b in ((client, server), (server, client)):
            self._selector.register(a, selectors.EVENT_READ, b)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(_READ_BYTES)
            target.sendall(data)
        if not data:
            for s in (source, target):
                self._selector.unregister(s)
                s.close()

    @contextlib.contextmanager
    def nothing_passes(self) -> Iterator[None]:
        """Lose every packet until the context is left."""
        self.lost.set()
        fillers = [socket.socket() for _ in range(_FILLERS)]
        for s in fillers:
            s.setblocking(False)
            s.connect_ex(self._listener.getsockname())
        try:
            yield
        finally:
            for s in fillers:
                s.close()
            self.lost.clear()

    def close(self) -> None:
        self._over.set()
        self.join()
