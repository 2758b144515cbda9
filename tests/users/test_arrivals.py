"""One reader for all connections: the same outcomes as by blocking reads, over TLS too, and moments kept to."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gevent
import pytest

from loadchaos.behaviours import plain
from loadchaos.model import Reply
from loadchaos.users.alarm import Alarm
from loadchaos.users.arrivals import Arrivals
from loadchaos.wire.call import Call, Progress
from loadchaos.wire.sending import Limits
from loadchaos.wire.sockets import Slot, Target
from tests.wire.conformance import KEPT_ALIVE, SHORT, TABLE, rules, sending
from tests.wire.misbehaving import Misbehaving, running

_gevent = cast("Any", gevent)
SLICES: list[bool] = []


@pytest.fixture
def arrivals() -> Iterator[Arrivals]:
    SLICES.clear()
    it = Arrivals(SLICES.append)
    yield it
    it.close()


def greenlets(works: list[Callable[[], Any]], within_s: float = 30) -> list[Any]:
    """Run them side by side; what each came to."""
    running = [_gevent.spawn(work) for work in works]
    _gevent.joinall(running, timeout=within_s, raise_error=True)
    assert all(g.ready() for g in running), "one waits for ever"
    return [g.value for g in running]


def asking(arrivals: Arrivals, server: Misbehaving, mode: str, stream: bool, expected: str) -> Callable[[], Reply]:
    """As conformance.once asks, from a greenlet."""
    slot = Slot(Target(server.url(mode)), arrivals.collect)
    judged_by = rules(foreign_nonce=lambda text: "zebra-17" if "zebra-17" in text else None)
    limits = SHORT if expected == "stalled" else Limits()

    def ask() -> Reply:
        if mode in KEPT_ALIVE:
            once()
            while slot._idle is not None and not slot._idle.is_stale():
                _gevent.sleep(0.005)
        try:
            return once()
        finally:
            slot.close()

    def once() -> Reply:
        call = Call(sending(slot.target, stream=stream, rules=judged_by, limits=limits), slot, Progress())
        sweeper = _gevent.spawn(_sweep, call)
        try:
            return plain.act(call)
        finally:
            sweeper.kill()

    return ask


def _sweep(call: Call) -> None:
    while True:
        _gevent.sleep(0.02)
        call.sweep(time.monotonic_ns())


def test_every_misbehaviour_ends_in_its_outcome_when_all_are_read_at_once(arrivals: Arrivals) -> None:
    rows = [(mode, stream, expected) for mode, kinds, expected in TABLE for stream in kinds]
    with running() as server:
        replies = greenlets([asking(arrivals, server, *row) for row in rows])
    wrong = [(row, reply.outcome) for row, reply in zip(rows, replies, strict=True) if reply.outcome != row[2]]
    assert wrong == []
    assert (SLICES[::2].count(False), SLICES[1::2].count(True)) == (0, 0)


def test_connections_are_used_again_and_an_idle_one_that_closed_is_not(arrivals: Arrivals) -> None:
    with running() as server:
        slot = Slot(Target(server.url("good")), arrivals.collect)

        def ask() -> Reply:
            return plain.act(Call(sending(slot.target, stream=True, rules=rules(), limits=Limits()), slot, Progress()))

        assert [r.outcome for r in greenlets([lambda: [ask() for _ in range(3)]])[0]] == ["ok"] * 3
        assert (slot.opened, server.connections) == (1, 1)
        kept = slot._idle
        assert kept is not None
        assert not kept.is_stale()

        def closes() -> None:
            socket.socket.shutdown(kept._sock, socket.SHUT_RDWR)  # as seen from here: the peer's end
            while not kept.is_stale():
                _gevent.sleep(0.005)

        greenlets([closes])
        assert greenlets([ask])[0].detail["stale_retry"] == 1
        slot.close()


def test_over_tls_nothing_stays_behind_in_the_decrypted_buffer(arrivals: Arrivals, certificate: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    body = b'{"choices":[{"message":{"content":"%s"},"finish_reason":"stop"}]}' % (b"a" * 200_000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            raw, _ = listener.accept()
            with served.wrap_socket(raw, server_side=True) as peer:
                for _ in range(2):
                    while not peer.recv(65536).endswith(b"{}"):
                        pass
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        slot = Slot(Target(url, ssl.create_default_context(cafile=str(certificate))), arrivals.collect)

        def ask() -> Reply:
            return plain.act(Call(sending(slot.target, stream=False, rules=rules(), limits=Limits()), slot, Progress()))

        replies = greenlets([lambda: [ask(), ask()]])[0]
        thread.join(10)
    assert [(r.outcome, len(r.text)) for r in replies] == [("ok", 200_000)] * 2
    assert slot.opened == 1
    slot.close()


def test_a_mistake_in_taking_in_is_raised_where_the_call_is(arrivals: Arrivals) -> None:
    class Mistaken(Call):
        def _take(self, at_ns: int, data: bytes) -> bool:
            raise ZeroDivisionError

    with running() as server:
        slot = Slot(Target(server.url("good")), arrivals.collect)
        call = Mistaken(sending(slot.target, stream=True, rules=rules(), limits=Limits()), slot, Progress())
        with pytest.raises(ZeroDivisionError):
            greenlets([lambda: plain.act(call)])
        slot.close()
        call.hang_up()


def test_an_alarm_never_goes_off_early_and_lets_others_run_meanwhile(arrivals: Arrivals) -> None:
    alarm, turns = Alarm(), []

    def waiting() -> list[int]:
        late_ns = []
        for after_ns in (0, 200_000, 3_000_000, 20_000_000):
            at_ns = time.monotonic_ns() + after_ns
            alarm.wait_until(at_ns)
            late_ns.append(time.monotonic_ns() - at_ns)
        arrivals.breathe()
        return late_ns

    late_ns, _ = greenlets([waiting, lambda: turns.append(1)])
    alarm.close()
    assert min(late_ns) >= 0
    assert turns == [1]


@pytest.mark.parametrize(
    ("came", "window_ms", "gathered_ms"),
    [
        ([3] * 50, 50, 50 / 3 / 4),  # a token every 17 ms on each
        ([1] * 300, 50, 5.0),
        ([50] * 3 + [2] * 200, 50, 0.25),  # three streams as fast as 1 ms a token
        ([1] * 99, 50, 0.0),  # under 2,000/s a wake-up each is no matter
        ([], 50, 0.0),
        ([3] * 50, 5000, 0.0),
    ],
)
def test_polls_stand_apart_where_tokens_come_thick_and_never_over_a_quarter_of_a_streams_gap(
    arrivals: Arrivals, came: list[int], window_ms: float, gathered_ms: float
) -> None:
    begun_ns = arrivals._window_ns
    for count in came:
        arrivals._in_window.append(cast("Any", Seen(count)))
    arrivals._learn(begun_ns + int(window_ms * 1e6))
    assert arrivals._gather_ns == pytest.approx(gathered_ms * 1e6, abs=2)
    assert arrivals._in_window == []


@dataclass
class Seen:
    """A connection on which so many packets came."""

    came: int
