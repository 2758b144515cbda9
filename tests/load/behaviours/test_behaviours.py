import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.units import Range
from loadchaos.load.behaviours import Behaviour
from loadchaos.load.behaviours.abort import Options as AbortOptions
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.sockets import Collect, Connection, Feed, Origin, Slot
from tests.load.wire.misbehaving import frame
from tests.load.wire.requests import exchange
from tests.load.wire.sweeper import swept
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, ConnectionServer, chunk, read_request


def token(finish: str | None = None) -> bytes:
    return chunk(frame({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": finish}]}))


class Stepping(ConnectionServer):
    """A server that sends one token for each that the client has read."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.sent = 0
        self.gone = threading.Event()
        self.first: bytes | None = None
        super().__init__(self._answer)

    def _answer(self, peer: socket.socket) -> None:
        try:
            read_request(peer)
            peer.sendall(SSE_HEAD + (self.first or b""))
            for n in range(10):
                if not self.go.acquire(timeout=5):
                    break
                peer.sendall(token("stop" if n == 9 else None))
                self.sent += 1
            peer.sendall(chunk(frame("[DONE]")) + LAST_CHUNK)
            peer.settimeout(5)
            while peer.recv(1024):
                pass
        finally:  # the client may hang up before
            self.gone.set()

    def close(self) -> None:
        for _ in range(10):
            self.go.release()
        super().close()


@pytest.fixture
def server() -> Iterator[Stepping]:
    with Stepping() as it:
        yield it


def act(options: Behaviour, server: Stepping, seed: int = 1) -> tuple[EndRow, Exchange]:
    slot = Slot(Origin(server.url), _stepped(server))
    call = exchange(slot, options=options, seed=seed)
    reply = options.act(call)
    slot.close()
    return reply, call


def _stepped(server: Stepping) -> Collect:
    def collect(connection: Connection, feed: Feed) -> bool:
        while True:
            server.go.release()
            at_ns, data = connection.receive()
            if not data or not feed(at_ns, data):
                return not data

    return collect


def test_plain_reads_to_the_end(server: Stepping) -> None:
    reply, _ = act(Behaviour(), server)
    assert (reply["outcome"], reply["chunks"]) == ("ok", 10)


@pytest.mark.parametrize("k", [1, 3, 9])
def test_abort_hangs_up_at_its_token(server: Stepping, k: int) -> None:
    reply, _ = act(AbortOptions(at_token=Range(k, k)), server)
    assert reply["outcome"] == "aborted"
    assert k <= reply["chunks"] <= server.sent + 1  # the server counts after sending
    assert reply["error"] is None
    assert reply["finish_reason"] is None


def test_abort_keeps_the_outcome_of_an_answer_that_ends_before_the_token(server: Stepping) -> None:
    reply, _ = act(AbortOptions(at_token=Range(50, 50)), server)
    assert reply["outcome"] == "ok"


def test_abort_keeps_an_error_that_came_before_the_hang_up(server: Stepping) -> None:
    server.first = chunk(frame({"error": {"message": "boom", "code": 500}}))
    reply, _ = act(AbortOptions(at_token=Range(2, 2)), server)
    assert (reply["outcome"], reply["error"]) == ("stream_error", "boom")
    assert reply["detail"]["hung_up"] is True


def test_abort_before_first_byte_reads_nothing_and_closes(server: Stepping) -> None:
    reply, _ = act(AbortOptions(before="first_byte"), server)
    assert (reply["outcome"], reply["first_byte_ns"], reply["bytes_in"]) == ("aborted", None, 0)
    server.go.release()
    server.go.release()
    assert server.gone.wait(10), "the server sees that the client went"


def test_abort_after_a_time_is_done_by_the_sweeper(server: Stepping) -> None:
    slot = Slot(Origin(server.url))
    client = AbortOptions.model_validate({"after": "50ms"})
    call = exchange(slot, options=client)
    with swept(call):
        reply = client.act(call)
    assert reply["outcome"] == "aborted"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "got none"),
        ({"at_token": "1..2", "after": "1s"}, "at_token and after"),
        ({"at_token": "0..2"}, "counts from 1"),
        ({"before": "tea"}, "first_byte"),
        ({"at_token": 1, "leave": "angrily"}, "reset"),
        ({"at_tokens": 3}, "Extra inputs"),
    ],
)
def test_abort_options_reject_contradictions(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AbortOptions.model_validate(given)
