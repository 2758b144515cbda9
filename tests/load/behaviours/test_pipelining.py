import socket
import struct

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.behaviours import pipeline
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.pipelined import PipelinedExchange
from loadchaos.load.wire.request import WireTimeouts
from loadchaos.load.wire.sockets import Origin, Slot
from tests.load.wire.misbehaving import GOOD, stream
from tests.load.wire.requests import wire_request
from tests.load.wire.sweeper import swept
from tests.raw_sockets import ConnectionServer, Handler

BODY = b'{"messages":[{"role":"user","content":"hello"}]}'
IDS = ("lc-1", "lc-1.1", "lc-1.2")


def answer(request_id: str) -> bytes:
    return stream(*GOOD).replace(b"x-request-id: req-9", b"x-request-id: " + request_id.encode())


def asked(says: Handler, limits: WireTimeouts | None = None) -> list[EndRow]:
    """Send three requests to a server that reads them all, then runs `says`."""

    def serve(peer: socket.socket) -> None:
        data = b""
        while data.count(BODY) < len(IDS):
            data += peer.recv(65536)
        says(peer)

    with ConnectionServer(serve) as server:
        return exchanged(Origin(server.url), limits)


def exchanged(target: Origin, limits: WireTimeouts | None) -> list[EndRow]:
    calls = [
        wire_request(target, BODY, limits=limits, options=pipeline.Options(), fresh=True, request_id=i) for i in IDS
    ]
    first = Exchange(calls[0], Slot(target), Progress())
    second = PipelinedExchange(calls[1], first, Slot(target), Progress())
    third = PipelinedExchange(calls[2], second, Slot(target), Progress())
    first.pipelined = [second, third]
    client = pipeline.Options()
    with swept(first, second, third):
        return [client.act(first), *(client.act_pipelined(c, first) for c in (second, third))]


def outcomes(replies: list[EndRow]) -> list[str]:
    return [r["outcome"] for r in replies]


def test_pipeline_reads_every_answer_in_any_packets() -> None:
    whole = b"".join(answer(i) for i in IDS)

    def in_pieces(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(whole), 37):
            peer.sendall(whole[at : at + 37])

    for says in (lambda peer: peer.sendall(whole), in_pieces):
        replies = asked(says)
        assert outcomes(replies) == ["ok", "ok", "ok"]
        assert [r["request_id"] for r in replies] == list(IDS)
        assert [r["chunks"] for r in replies] == [3, 3, 3]
        assert "slowed" not in replies[0]["detail"]
        assert replies[1]["detail"]["slowed"], "it waited for the answer before, which is the client's doing"


def test_pipeline_closed_after_an_answer_is_no_fault() -> None:
    replies = asked(lambda peer: peer.sendall(answer(IDS[0])))
    assert outcomes(replies) == ["ok", "aborted", "aborted"]
    assert replies[1]["detail"]["why"] == replies[2]["detail"]["why"]
    assert "which it may" in replies[1]["detail"]["why"]


def test_pipeline_cut_inside_an_answer_resets_it_and_all_later_ones() -> None:
    def cuts(peer: socket.socket) -> None:
        peer.sendall(answer(IDS[0]) + answer(IDS[1])[:-20])
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    replies = asked(cuts)
    assert outcomes(replies)[1:] == ["reset", "reset"]
    assert "during a previous answer" in str(replies[2]["error"])


def test_pipeline_error_belongs_to_its_own_request_only() -> None:
    body = b'{"error":{"message":"boom","code":500}}'
    wrong = b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    replies = asked(lambda peer: peer.sendall(answer(IDS[0]) + wrong + answer(IDS[2])))
    assert outcomes(replies) == ["ok", "http_error", "ok"]
    assert replies[1]["error"] == "boom"


def test_pipeline_answers_mixed_up_are_wrong_output() -> None:
    replies = asked(lambda peer: peer.sendall(answer(IDS[1]) + answer(IDS[0]) + answer(IDS[2])))
    assert outcomes(replies) == ["wrong_output", "wrong_output", "ok"]
    assert replies[0]["error"] == "the word of another request is in the answer: lc-1.1"


def test_pipeline_second_answer_stalls_by_its_own_time() -> None:
    def silent(peer: socket.socket) -> None:
        peer.sendall(answer(IDS[0]))
        peer.recv(1)  # until the client leaves

    replies = asked(silent, WireTimeouts(first_byte_ns=150_000_000, between_bytes_ns=150_000_000))
    assert outcomes(replies) == ["ok", "stalled", "aborted"]
