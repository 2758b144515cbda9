"""The recording proxy changes nothing between raw sockets: it must never be what breaks."""

import hashlib
import socket
import threading
import time
from typing import Any

import psutil
import pytest

from loadchaos.campaigns.recorder import proxy as proxies
from tests.campaigns.recorder.conftest import (
    DONE,
    WAIT_S,
    Between,
    begins,
    event,
    plain,
    post,
    read_all,
    read_until,
    whole,
)
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, read_request, reset
from tests.waiting import until


def test_stream_reaches_the_client_event_by_event(between: Between) -> None:
    """Each event is passed on before the next one exists."""
    go_on = threading.Event()

    def serve(c: socket.socket) -> None:
        assert go_on.wait(WAIT_S)
        c.sendall(event("two") + event(None, "stop") + DONE + LAST_CHUNK)
        read_request(c)

    running, seen = between(begins(serve))
    with running.connect() as client:
        client.sendall(post(b'{"stream":true}'))
        first = read_until(client, event("one"))
        assert first == SSE_HEAD + event("one")
        go_on.set()
        read_until(client, LAST_CHUNK)
    assert seen.outcomes() == ["ok"]
    assert (seen.ended[0].tokens, seen.ended[0].finish(), seen.ended[0].path) == (4, "stop", b"/v1/chat/completions")


def test_bytes_are_unchanged_in_both_directions(between: Between) -> None:
    got: list[bytes] = []
    answer = b"HTTP/1.1 200 Fine\r\nx-ODD:  Case \r\nContent-Length: 3\r\n\r\nabc"

    def serve(c: socket.socket) -> None:
        got.append(read_request(c))
        c.sendall(answer)
        read_request(c)

    running, _ = between(serve)
    request = post(b'{"a": 1}', b"x-Custom-HEADER:   Value ", b"Authorization: Bearer secret")
    with running.connect() as client:
        client.sendall(request)
        assert read_until(client, b"abc") == answer
    assert got == [request]


def test_pipelined_requests_are_answered_in_order(between: Between) -> None:
    bodies = [whole("1"), b'{"error":{"message":"22"}}', whole("333")]
    answers = [plain(bodies[0]), plain(bodies[1], b"400 Bad Request"), plain(bodies[2])]

    def serve(c: socket.socket) -> None:
        data = b""
        while data.count(b"POST") < 3:
            data += c.recv(65536)
        c.sendall(b"".join(answers))
        read_request(c)

    running, seen = between(serve)
    with running.connect() as client:
        client.sendall(post(b'{"n":1}') + post(b'{"n":2}') + post(b'{"n":3}'))
        assert read_until(client, bodies[2]) == b"".join(answers)
    assert seen.outcomes(3) == ["ok", "rejected", "ok"]
    assert [e.got_bytes for e in seen.ended] == [len(body) for body in bodies]


def test_head_and_interim_answers_do_not_confuse_the_tap(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        read_until(c, b"100-continue\r\n\r\n")
        c.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        read_until(c, b"{}")
        c.sendall(plain())
        read_request(c)

    running, seen = between(serve)
    with running.connect() as client:
        client.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        read_until(client, b"\r\n\r\n")
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        read_until(client, b"\r\n\r\n")
        client.sendall(b"{}")
        read_until(client, plain())
    assert seen.outcomes(2) == ["ok", "ok"]
    assert [(e.method, e.status) for e in seen.ended] == [("HEAD", 200), ("POST", 200)]


def test_upgraded_connection_is_passed_on_both_ways(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi")
        while data := c.recv(65536):
            c.sendall(data[::-1])

    running, _ = between(serve)
    with running.connect() as client:
        client.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        read_until(client, b"\x81\x02hi")
        for frame in (b"\x81\x85abcdhello", bytes(range(256)), b"POST / HTTP/1.1\r\n\r\n"):
            client.sendall(frame)
            assert read_until(client, frame[::-1]) == frame[::-1]
    assert running.settle() == 0
    assert running.proxy.observers_lost == 0


def test_bytes_that_are_no_http_are_passed_on(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        while data := c.recv(65536):
            c.sendall(data.upper())

    running, _ = between(serve)
    with running.connect() as client:
        for text in (b"\x00\xff nonsense", b"more of it"):
            client.sendall(text)
            assert read_until(client, text.upper()) == text.upper()
    assert running.proxy.observers_lost == 1


def test_observer_that_raises_ends_and_the_proxy_goes_on(between: Between) -> None:
    class Broken:
        answering = False

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("a bug of the observer")

    def serve(c: socket.socket) -> None:
        while read_request(c):
            c.sendall(plain(b"fine"))

    running, _ = between(serve, Broken)
    with running.connect() as client:
        for _ in range(2):
            client.sendall(post(b"{}"))
            assert read_until(client, b"fine") == plain(b"fine")
    assert running.proxy.observers_lost == 1


def test_upload_of_100_mb_arrives_with_bounded_memory(between: Between) -> None:
    piece, pieces = bytes(range(256)) * 4096, 100
    found: list[str] = []

    def serve(c: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += c.recv(1 << 20)
        first = data.partition(b"\r\n\r\n")[2]
        digest, left = hashlib.sha1(first), len(piece) * pieces - len(first)
        while left:
            data = c.recv(1 << 20)
            assert data
            digest.update(data)
            left -= len(data)
        found.append(digest.hexdigest())
        c.sendall(plain(whole("got it")))
        read_request(c)

    running, seen = between(serve)
    wanted = hashlib.sha1()
    before = psutil.Process().memory_info().rss
    with running.connect() as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (len(piece) * pieces))
        for _ in range(pieces):
            client.sendall(piece)
            wanted.update(piece)
        read_until(client, whole("got it"))
    assert found == [wanted.hexdigest()]
    assert seen.outcomes() == ["ok"]
    assert seen.body_bytes == len(piece) * pieces
    assert psutil.Process().memory_info().rss - before < 40 << 20


def test_slow_client_holds_the_server_back(between: Between) -> None:
    """Data for a client that does not read stays with the server, and arrives whole later."""
    size, sent = 64 << 20, [0]

    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        piece = b"x" * (1 << 20)
        while sent[0] < size:
            c.sendall(piece)
            sent[0] += len(piece)
        read_request(c)

    running, _ = between(serve)
    with running.connect() as client:
        client.sendall(post(b"{}"))
        before = -1
        while before != sent[0]:
            before = sent[0]
            time.sleep(0.1)
        assert sent[0] < size // 2
        got = 0
        while got < size:
            got += len(client.recv(1 << 20))
    assert sent[0] == size


def test_slow_server_holds_the_client_back(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        assert stop.wait(WAIT_S)

    stop = threading.Event()
    running, _ = between(serve)
    with running.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.sendall(b"x" * (50 << 20))
        stop.set()


def test_client_that_leaves_ends_the_request_at_the_server(between: Between) -> None:
    left = threading.Event()

    def serve(c: socket.socket) -> None:
        assert c.recv(1) == b""
        left.set()

    running, seen = between(begins(serve))
    client = running.connect()
    client.sendall(post(b'{"stream":true}'))
    read_until(client, event("one"))
    client.close()
    assert left.wait(WAIT_S)
    assert seen.outcomes() == ["aborted"]
    assert running.settle() == 0


def test_reset_of_the_client_resets_the_server(between: Between) -> None:
    ended: list[str] = []

    def serve(c: socket.socket) -> None:
        try:
            c.recv(1)
        except ConnectionResetError:
            ended.append("reset")

    running, seen = between(begins(serve))
    client = running.connect()
    client.sendall(post(b'{"stream":true}'))
    read_until(client, event("one"))
    reset(client)
    assert seen.outcomes() == ["aborted"]
    assert running.settle() == 0
    assert until(lambda: ended, "the reset", WAIT_S) == ["reset"]


def test_reset_of_the_server_within_an_answer_resets_the_client(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        time.sleep(0.05)
        reset(c)

    running, seen = between(begins(serve))
    with running.connect() as client:
        client.sendall(post(b'{"stream":true}'))
        with pytest.raises(ConnectionResetError):
            read_all(client)
    assert seen.outcomes() == ["reset"]


def test_server_that_closes_within_an_answer_cuts_it(between: Between) -> None:
    running, seen = between(begins())
    with running.connect() as client:
        client.sendall(post(b'{"stream":true}'))
        assert read_all(client) == SSE_HEAD + event("one")
    assert seen.outcomes() == ["reset"]


def test_answer_before_a_reset_of_the_server_is_delivered(between: Between) -> None:
    """A server that refuses an upload answers and closes with unread data, which resets the connection."""

    answer = plain(b'{"error":{"message":"too large"}}', b"413 Content Too Large")

    def serve(c: socket.socket) -> None:
        c.recv(100)
        c.sendall(answer)
        time.sleep(0.1)

    running, seen = between(serve)
    with running.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 500_000)
        assert read_until(client, b"}}") == answer
        assert client.recv(1) == b""
    assert seen.outcomes() == ["rejected"]


def test_answer_that_ends_with_its_connection_is_complete(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + whole("yes"))

    running, seen = between(serve)
    with running.connect() as client:
        client.sendall(post(b"{}"))
        assert read_all(client).endswith(whole("yes"))
    assert seen.outcomes() == ["ok"]


def test_half_closed_client_gets_its_answer(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        assert read_all(c) == post(b"{}")
        c.sendall(plain(b"late"))

    running, _ = between(serve)
    with running.connect() as client:
        client.sendall(post(b"{}"))
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == plain(b"late")
    assert running.settle() == 0


def test_upstream_that_refuses_is_answered_with_502(between: Between) -> None:
    running, seen = between(None)
    with running.connect() as client:
        client.sendall(post(b"x" * 300_000))
        assert read_all(client) == proxies.BAD_GATEWAY
    assert seen.outcomes() == ["connect_error"]
    assert running.settle() == 0


def test_connection_without_a_request_ends_when_upstream_refuses(
    between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "LINGER_S", 0.05)
    running, seen = between(None)
    with running.connect() as client:
        assert client.recv(10) == b""
    assert (running.settle(), seen.ended) == (0, [])


def test_many_streams_at_once_arrive_whole(between: Between) -> None:
    def serve(c: socket.socket) -> None:
        while request := read_request(c):
            c.sendall(SSE_HEAD)
            for _ in range(20):
                c.sendall(event(request[-4:].decode()))
            c.sendall(event(None, "stop") + DONE + LAST_CHUNK)

    running, seen = between(serve)
    clients = [running.connect() for _ in range(40)]
    for n, client in enumerate(clients):
        client.sendall(post(b"%04d" % n))
    for n, client in enumerate(clients):
        got = read_until(client, LAST_CHUNK)
        assert got == SSE_HEAD + event(f"{n:04d}") * 20 + event(None, "stop") + DONE + LAST_CHUNK
        client.close()
    assert seen.outcomes(40) == ["ok"] * 40
    assert running.settle() == 0
