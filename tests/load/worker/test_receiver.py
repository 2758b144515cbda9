import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import gevent
import pytest

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.behaviours import Behaviour
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.native import PURE
from loadchaos.load.wire.request import WireTimeouts
from loadchaos.load.wire.sockets import Connection, Origin, Slot
from loadchaos.load.worker.greenlets import Timer
from loadchaos.load.worker.receiver import Receiver
from tests.load.wire.conformance import KEPT_ALIVE, SHORT, TABLE, rules, rules_of
from tests.load.wire.misbehaving import Misbehaving
from tests.load.wire.native_reading import READINGS
from tests.load.wire.requests import wire_request
from tests.rows import MS

_gevent = cast("Any", gevent)
SLICES: list[bool] = []


@pytest.fixture(params=READINGS)
def arrivals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    SLICES.clear()
    monkeypatch.setenv(PURE, "0" if request.param else "1")
    it = Receiver(SLICES.append)
    assert (it._poller is not None) is request.param
    yield it
    it.close()


def greenlets(works: list[Callable[[], Any]], within_s: float = 30) -> list[Any]:
    running = [_gevent.spawn(work) for work in works]
    _gevent.joinall(running, timeout=within_s, raise_error=True)
    assert all(g.ready() for g in running), "one waits for ever"
    return [g.value for g in running]


def asking(
    arrivals: Receiver, server: Misbehaving, mode: str, stream: bool, expected_outcomes: str
) -> Callable[[], EndRow]:
    """As conformance.once asks, from a greenlet."""
    slot = Slot(Origin(server.url_of(mode)), arrivals.collect)
    judged_by = rules_of(mode)
    limits = SHORT if expected_outcomes == "stalled" else WireTimeouts()

    def ask() -> EndRow:
        if mode in KEPT_ALIVE:
            once()
            while slot._idle is not None and not slot._idle.is_stale():
                _gevent.sleep(0.005)
        try:
            return once()
        finally:
            slot.close()

    def once() -> EndRow:
        call = Exchange(wire_request(slot.target, stream=stream, rules=judged_by, limits=limits), slot, Progress())
        sweeper = _gevent.spawn(_sweep, call)
        try:
            return Behaviour().act(call)
        finally:
            sweeper.kill()

    return ask


def _sweep(call: Exchange) -> None:
    while True:
        _gevent.sleep(0.02)
        call.sweep(time.monotonic_ns())


def test_receiver_misbehaviours_end_in_their_outcomes_when_read_at_once(arrivals: Receiver) -> None:
    rows = [(mode, stream, expected_outcomes) for mode, kinds, expected_outcomes in TABLE for stream in kinds]
    with Misbehaving() as server:
        replies = greenlets([asking(arrivals, server, *row) for row in rows])
    wrong = [(row, reply["outcome"]) for row, reply in zip(rows, replies, strict=True) if reply["outcome"] != row[2]]
    assert wrong == []
    assert (SLICES[::2].count(False), SLICES[1::2].count(True)) == (0, 0)


def test_receiver_reuses_connections_and_drops_a_closed_idle_one(arrivals: Receiver) -> None:
    with Misbehaving() as server:
        slot = Slot(Origin(server.url_of("good")), arrivals.collect)

        def ask() -> EndRow:
            return Behaviour().act(Exchange(wire_request(slot.target, stream=True, rules=rules()), slot, Progress()))

        assert [r["outcome"] for r in greenlets([lambda: [ask() for _ in range(3)]])[0]] == ["ok"] * 3
        assert (slot.opened, server.connections) == (1, 1)
        kept = slot._idle
        assert kept is not None
        assert not kept.is_stale()

        def closes() -> None:
            socket.socket.shutdown(kept._sock, socket.SHUT_RDWR)  # as seen from here: the peer's end
            while not kept.is_stale():
                _gevent.sleep(0.005)

        greenlets([closes])
        assert greenlets([ask])[0]["detail"]["stale_retry"] == 1
        slot.close()


def tls_answer(content: bytes) -> bytes:
    body = b'{"choices":[{"message":{"content":"%s"},"finish_reason":"stop"}]}' % content
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def answer_next(peer: ssl.SSLSocket, answer: bytes) -> None:
    while not peer.recv(65536).endswith(b"{}"):
        pass
    peer.sendall(answer)


@contextmanager
def tls_slot(
    arrivals: Receiver, certificate: Path, serve: Callable[[Callable[[], ssl.SSLSocket]], None]
) -> Iterator[tuple[Slot, Callable[[], EndRow]]]:
    """A slot of a server, whose thread `serve` gets a function that accepts, and a function that asks it once."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(
            target=serve, args=(lambda: served.wrap_socket(listener.accept()[0], server_side=True),)
        )
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        slot = Slot(Origin(url, ssl.create_default_context(cafile=str(certificate))), arrivals.collect)
        yield (
            slot,
            lambda: Behaviour().act(Exchange(wire_request(slot.target, stream=False, rules=rules()), slot, Progress())),
        )
        thread.join(10)
    slot.close()


def test_receiver_over_tls_leaves_no_decrypted_bytes(arrivals: Receiver, certificate: Path) -> None:
    def serve(accept: Callable[[], ssl.SSLSocket]) -> None:
        with accept() as peer:
            for _ in range(2):
                answer_next(peer, tls_answer(b"a" * 200_000))

    with tls_slot(arrivals, certificate, serve) as (slot, ask):
        replies = greenlets([lambda: [ask(), ask()]])[0]
        assert [(r["outcome"], r["bytes_in"] > 200_000) for r in replies] == [("ok", True)] * 2
        assert slot.opened == 1


def test_receiver_over_tls_replaces_a_connection_closed_while_idle(arrivals: Receiver, certificate: Path) -> None:
    closed, answer = threading.Event(), tls_answer(b"a")

    def serve(accept: Callable[[], ssl.SSLSocket]) -> None:
        for answers in ([answer] * 2, [answer, answer[:40]]):  # the second one closes in the middle of its answer
            with accept() as peer:
                for one in answers:
                    answer_next(peer, one)
            closed.set()

    with tls_slot(arrivals, certificate, serve) as (slot, ask):

        def ask_twice() -> list[EndRow]:
            replies = [ask(), ask()]
            while not closed.is_set():
                _gevent.sleep(0.005)
            _gevent.sleep(0.01)
            return [*replies, ask(), ask()]

        replies = greenlets([ask_twice])[0]
        assert [r["outcome"] for r in replies] == ["ok", "ok", "ok", "reset"]
        assert [r["detail"].get("stale_retry") for r in replies] == [None, None, 1, None]
        assert slot.opened == 2


def test_receiver_raises_a_bug_in_the_exchange_that_has_it(arrivals: Receiver) -> None:
    class Mistaken(Exchange):
        def _feed(self, at_ns: int, data: bytes) -> bool:
            raise ZeroDivisionError

    with Misbehaving() as server:
        slot = Slot(Origin(server.url_of("good")), arrivals.collect)
        call = Mistaken(wire_request(slot.target, stream=True, rules=rules()), slot, Progress())
        with pytest.raises(ZeroDivisionError):
            greenlets([lambda: Behaviour().act(call)])
        slot.close()
        call.hang_up()


def test_timer_is_never_early_and_lets_others_run(arrivals: Receiver) -> None:
    timer, turns = Timer(), []

    def waiting() -> list[int]:
        late_ns = []
        for after_ns in (0, 200_000, 3_000_000, 20_000_000):
            at_ns = time.monotonic_ns() + after_ns
            timer.wait_until(at_ns)
            late_ns.append(time.monotonic_ns() - at_ns)
        arrivals.yield_to_reads()
        return late_ns

    late_ns, _ = greenlets([waiting, lambda: turns.append(1)])
    timer.close()
    assert min(late_ns) >= 0
    assert turns == [1]


@pytest.mark.parametrize(
    ("windows", "apart_ms"),
    [
        ([(1000, 6 * MS)], 1.5),
        ([(1000, 60 * MS)], 2.0),
        ([(1000, 6 * MS)] * 5 + [(1000, 3 * MS)], 0.75),  # one stream of them all was that fast
        ([(1000, 3 * MS)] + [(1000, 6 * MS)] * 19, 0.75),  # and may be again
        ([(1000, 3 * MS)] + [(1000, 6 * MS)] * 20, 1.5),
        ([(1000, MS)], 0.5),
        ([(1000, 1 << 62)], 0.5),  # first tokens: how near the next ones are is not known
        ([(1000, 16 * MS), (99, 16 * MS)], 0.0),  # under 2,000/s a wake-up each is no matter
    ],
)
def test_receiver_polls_are_at_most_a_quarter_of_the_shortest_gap_apart(
    arrivals: Receiver, windows: list[tuple[int, int]], apart_ms: float
) -> None:
    now_ns = arrivals._window_ns
    for came, shortest_ns in windows:
        arrivals._window_count, arrivals._shortest_gap_ns = came, shortest_ns
        now_ns += 50 * MS
        arrivals._tune_batch(now_ns)
    assert arrivals.batch_ns == apart_ms * MS


def test_receiver_does_not_wait_while_greenlets_are_ready_or_senders_blocked(
    arrivals: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood: list[float] = []
    monkeypatch.setattr("loadchaos.load.worker.receiver.block_process", stood.append)
    arrivals._target = target = Origin("http://127.0.0.1:1")

    def times() -> int:
        stood.clear()
        arrivals._polled_ns = time.monotonic_ns()
        arrivals.batch_ns = 60_000 * MS
        arrivals._window_ns = arrivals._polled_ns
        arrivals._wait_for_more()
        return len(stood)

    assert times() == 1
    _gevent.spawn(times)
    assert times() == 0, "a greenlet is ready"
    _gevent.sleep(0)
    target.blocked += 1
    assert times() == 0, "somebody connects"
    target.blocked -= 1
    arrivals._timer = timer = Timer()
    timer.due_ns = time.monotonic_ns()
    assert times() == 0, "a request is due"
    timer.due_ns = None
    assert times() == 1
    timer.close()


def test_origin_counts_blocked_connects_and_sends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = Origin(f"http://127.0.0.1:{listener.getsockname()[1]}")
        seen: list[int] = []
        asked = target.addresses()
        target.addresses = lambda: seen.append(target.blocked) or asked  # type: ignore[method-assign,func-returns-value]
        connection = Connection.open(target, 1, 10)
        peer, _ = listener.accept()

        def read() -> None:
            left = 30_000_000
            while left:
                if not seen[1:]:
                    seen.append(target.blocked)
                left -= len(peer.recv(1 << 20))

        thread = threading.Thread(target=read)
        sending = threading.Thread(target=connection.send, args=(bytes(30_000_000),))
        sending.start()
        while not target.blocked:
            time.sleep(0.001)
        thread.start()
        sending.join(30)
        thread.join(30)
        peer.close()
        connection.close()
    assert seen == [1, 1]
    assert target.blocked == 0
