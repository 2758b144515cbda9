"""Read an answer through the native reader or without it, from pieces with given times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.native import is_native, new_poller
from loadchaos.load.wire.sockets import RECEIVE_BYTES, Collect, Connection, Feed

if TYPE_CHECKING:
    from loadchaos.load.wire._native import Lane

READINGS = [
    pytest.param(True, id="native", marks=pytest.mark.skipif(not is_native(), reason="there is no native reader")),
    pytest.param(False, id="pure"),
]


class PieceConnection:
    """Connection whose server sends these pieces at these times (monotonic ns) and closes."""

    def __init__(self, pieces: Iterable[tuple[int, bytes]], lane: Lane | None) -> None:
        self._pieces, self.lane = iter(pieces), lane
        self.number, self.idle_since_ns = 1, 0
        self.last_ns = 0

    def receive(self, _most: int = RECEIVE_BYTES) -> tuple[int, bytes]:
        self.last_ns, piece = next(self._pieces, (self.last_ns, b""))
        return self.last_ns, piece

    def close(self) -> None:
        pass


class Reading:
    """Collects as the receiver does: what the native reader does not count is fed. `counted`: bytes that it counted."""

    def __init__(self, *, native: bool) -> None:
        self._poller: Any = new_poller(RECEIVE_BYTES, 0) if native else None
        self.counted = 0

    def lane(self) -> Lane | None:
        return None if self._poller is None else self._poller.lane(-1)

    @property
    def collect(self) -> Collect:
        return self._collect

    def _collect(self, connection: Connection, feed: Feed) -> bool:
        while True:
            at_ns, data = connection.receive()
            if not data:
                return True
            if connection.lane is not None:
                n = self._poller.count(connection.lane, at_ns, data)
                self.counted += n
                data = data[n:]
            if data and not feed(at_ns, data):
                return False

    def read(self, call: Exchange, pieces: Iterable[tuple[int, bytes]]) -> None:
        call._connection = PieceConnection(pieces, self.lane())  # type: ignore[assignment]
        call._slot.collect = self._collect
        call.receive_all()
