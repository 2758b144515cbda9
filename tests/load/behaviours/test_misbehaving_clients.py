"""Slow, rude and silent clients on real sockets.

Each test checks what the server receives and which outcome the request has.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.behaviours import BEHAVIOURS
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.request import WireTimeouts
from loadchaos.load.wire.sockets import Connection, Origin, Slot
from tests.load.wire.misbehaving import GOOD, ROLE, STOP, TOKENS, delta, frame, stream
from tests.load.wire.requests import wire_request
from tests.load.wire.sweeper import swept
from tests.raw_sockets import ConnectionServer

BODY = b'{"messages":[{"role":"user","content":"' + b"word " * 40 + b'"}]}'


@dataclass
class Seen:
    """One connection as the server saw it: its pieces with times, and its end."""

    pieces: list[bytes] = field(default_factory=list)
    end: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    got_request: threading.Event = field(default_factory=threading.Event)

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


class Recorder(ConnectionServer):
    """A server that records what clients send, in reads of `gulp` bytes.

    It answers each complete request with `answer` (None: never).
    """

    def __init__(self) -> None:
        self.answer: bytes | None = stream(*GOOD)
        self.seen: list[Seen] = []
        self.sent_s: list[float] = []
        super().__init__(self._record)

    def _record(self, peer: socket.socket) -> None:
        seen = Seen()
        self.seen.append(seen)
        answered = 0
        peer.settimeout(10)
        try:
            while piece := peer.recv(65536):
                seen.pieces.append(piece)
                while answered < seen.data.count(BODY):
                    answered += 1
                    seen.got_request.set()
                    if self.answer is not None:
                        begin = time.monotonic()
                        peer.sendall(self.answer)
                        self.sent_s.append(time.monotonic() - begin)
            seen.end = "closed"
        except OSError as e:
            seen.end = type(e).__name__
        peer.close()
        seen.done.set()


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as it:
        yield it


def ask(
    server: Recorder,
    behaviour: str,
    *,
    slot: Slot | None = None,
    seed: int = 1,
    limits: WireTimeouts | None = None,
    **options: Any,
) -> EndRow:
    mine = slot or Slot(Origin(server.url))
    client = BEHAVIOURS[behaviour].model_validate(options)
    wire = wire_request(mine.target, BODY, limits=limits, options=client, seed=seed, fresh=client.FRESH)
    try:
        with swept(Exchange(wire, mine, Progress())) as call:
            return client.act(call)
    finally:
        if slot is None:
            mine.close()


def only(server: Recorder) -> Seen:
    (seen,) = server.seen
    assert seen.done.wait(10), "the connection is let go of"
    return seen


def test_drip_sends_the_body_byte_by_byte_and_is_answered(server: Recorder) -> None:
    reply = ask(server, "drip", bytes="1..1", pause="1ms")
    assert reply["outcome"] == "ok"
    seen = only(server)
    assert seen.data.endswith(BODY)
    assert len(seen.pieces) > len(BODY) // 4  # the kernel may join some on their way
    assert reply["detail"]["slowed"] is True


def test_drip_sends_the_rest_at_once_after_its_time(server: Recorder) -> None:
    reply = ask(server, "drip", bytes="1..1", pause="10ms", of="all", for_="50ms")
    assert reply["outcome"] == "ok"
    assert len(only(server).pieces) < 40


def test_drip_cuts_are_equal_for_one_seed(server: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[list[int]] = []
    send = Connection.send

    def recorded(self: Connection, data: bytes) -> None:
        cuts[-1].append(len(data))
        send(self, data)

    monkeypatch.setattr(Connection, "send", recorded)
    for seed in (9, 9, 10):
        cuts.append([])
        ask(server, "drip", seed=seed, bytes="1..40", pause="1ms")
    assert cuts[0] == cuts[1] != cuts[2]


def test_drip_reads_a_refusal_before_the_whole_body_is_sent(server: Recorder) -> None:
    def refuse(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with ConnectionServer(refuse) as refusing:
        reply = ask(server, "drip", slot=Slot(Origin(refusing.url)), bytes="1..2", pause="5ms")
    assert (reply["outcome"], reply["status"]) == ("http_error", 408)


def test_slow_read_blocks_the_server_and_gets_the_whole_answer(server: Recorder) -> None:
    text = frame(delta(content="x" * 2000)) * 4000
    server.answer = stream(ROLE, text, STOP, frame("[DONE]"))
    reply = ask(server, "slow_read", bytes="65536", pause="2ms", for_="400ms")
    assert (reply["outcome"], reply["chunks"]) == ("ok", 4000)
    assert server.sent_s[0] > 0.2, "8 MB do not fit the buffers: the server had to wait for us"
    assert reply["itl_hist"] == {}
    assert reply["detail"]["slowed"] is True


def test_churn_opens_a_connection_for_each_request(server: Recorder) -> None:
    slot = Slot(Origin(server.url))
    assert ask(server, "plain", slot=slot)["outcome"] == "ok"
    replies = [ask(server, "churn", slot=slot) for _ in range(3)]
    assert {r["outcome"] for r in replies} == {"ok"}
    assert len(server.seen) == 4
    assert all(seen.done.wait(10) for seen in server.seen[1:])
    assert ask(server, "plain", slot=slot)["outcome"] == "ok"
    assert len(server.seen) == 4, "the slot's own connection is still good"
    slot.close()


@pytest.mark.parametrize(
    ("sent", "bytes_seen"),
    [
        ("nothing", lambda data: data == b""),
        ("half_head", lambda data: len(data) > 0 and b"\r\n\r\n" not in data),
        ("head", lambda data: data.endswith(b"\r\n\r\n")),
        ("half_body", lambda data: b"\r\n\r\n{" in data and not data.endswith(BODY)),
        ("all", lambda data: data.endswith(BODY)),
    ],
)
def test_half_open_sends_a_part_waits_and_leaves(
    server: Recorder, sent: str, bytes_seen: Callable[[bytes], bool]
) -> None:
    begin = time.monotonic()
    reply = ask(server, "half_open", sent=sent, hold="100ms", limits=WireTimeouts(first_byte_ns=20_000_000))
    assert reply["outcome"] == "aborted", "its own silence is no stall of the server"
    assert time.monotonic() - begin >= 0.1
    seen = only(server)
    assert bytes_seen(seen.data)


def test_big_headers_adds_lines_to_a_whole_request(server: Recorder) -> None:
    assert ask(server, "big_headers", lines=50, bytes=20_000)["outcome"] == "ok"
    head, _, body = only(server).data.partition(b"\r\n\r\n")
    fillers = [line for line in head.split(b"\r\n") if line.startswith(b"x-filler-")]
    assert (len(fillers), body) == (50, BODY)
    assert 19_000 <= sum(len(line) + 2 for line in fillers) <= 20_000


@pytest.mark.parametrize(
    ("status", "outcome"), [(b"431 Request Header Fields Too Large", "rejected"), (b"500 Oh", "http_error")]
)
def test_big_headers_takes_a_refusal_as_one(server: Recorder, status: bytes, outcome: str) -> None:
    server.answer = b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    assert ask(server, "big_headers")["outcome"] == outcome


def test_half_open_may_leave_with_a_reset(server: Recorder) -> None:
    server.answer = None
    reply = ask(server, "half_open", sent="all", hold="20ms", leave="reset")
    assert reply["outcome"] == "aborted"
    assert only(server).end == "ConnectionResetError"


def test_half_open_wakes_up_when_the_load_stops(server: Recorder) -> None:
    slot = Slot(Origin(server.url))
    client = BEHAVIOURS["half_open"].model_validate({"hold": "60s"})
    wire = wire_request(slot.target, BODY, path="/x", options=client, fresh=True)
    call = Exchange(wire, slot, Progress())
    stopper = threading.Timer(0.1, call.end, ("hung_up", "stopped"))
    stopper.start()
    assert client.act(call)["outcome"] == "aborted"
    stopper.join()


def test_abort_before_body_sends_only_the_head(server: Recorder) -> None:
    reply = ask(server, "abort", before="body")
    assert (reply["outcome"], reply["first_byte_ns"]) == ("aborted", None)
    assert only(server).data.endswith(b"\r\n\r\n")


def test_abort_before_end_leaves_after_the_last_token(server: Recorder) -> None:
    server.answer = stream(ROLE, TOKENS, STOP, end=b"")  # usage and [DONE] would come later
    reply = ask(server, "abort", before="end", leave="reset")
    assert (reply["outcome"], reply["finish_reason"], reply["chunks"]) == ("aborted", "stop", 3)
    assert only(server).end in {"closed", "ConnectionResetError"}


def test_abort_before_end_of_an_unstreamed_answer_is_ok(server: Recorder) -> None:
    assert ask(server, "abort", before="end")["outcome"] == "ok"


def test_pipeline_of_depth_one_is_rejected() -> None:
    with pytest.raises(ValidationError, match="2 requests deep"):
        BEHAVIOURS["pipeline"].model_validate({"depth": 1})
