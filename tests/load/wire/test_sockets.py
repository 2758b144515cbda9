import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.behaviours import Behaviour
from loadchaos.load.wire import sockets
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.request import WireTimeouts, request_head
from loadchaos.load.wire.sockets import Origin, Slot
from tests.load.wire import misbehaving
from tests.load.wire.misbehaving import Misbehaving
from tests.load.wire.requests import exchange
from tests.raw_sockets import Handler, read_request, reset
from tests.waiting import until


def call(slot: Slot, limits: WireTimeouts | None = None) -> Exchange:
    return exchange(slot, limits=limits)


def ask(slot: Slot) -> tuple[EndRow, Exchange]:
    one = call(slot)
    return Behaviour().act(one), one


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("http://h:8000", "/v1/chat/completions"),
        ("http://h:8000/", "/v1/chat/completions"),
        ("http://h:8000/v1", "/v1/chat/completions"),
        ("http://h:8000/v1/", "/v1/chat/completions"),
        ("https://h/gateway/eu", "/gateway/eu/v1/chat/completions"),
        ("https://h/gateway/eu/v1", "/gateway/eu/v1/chat/completions"),
    ],
)
def test_origin_accepts_base_urls_with_and_without_v1(base: str, path: str) -> None:
    assert Origin(base).path("/v1/chat/completions") == path


@pytest.mark.parametrize("base", ["", "h:8000", "ftp://h", "http://"])
def test_origin_rejects_other_urls(base: str) -> None:
    with pytest.raises(ValueError, match="a URL such as"):
        Origin(base)


def test_request_head_rejects_header_injection() -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        request_head("/", "h", {"X-A": "1\r\nX-B: 2"})


def test_slot_keeps_a_connection_and_uses_it_again(server: Misbehaving) -> None:
    slot = Slot(Origin(server.url_of("good")))
    numbers = [(ask(slot)[1].connection_number, n) for n in range(3)]
    assert numbers == [(1, 0), (1, 1), (1, 2)]
    assert server.connections == 1
    slot.close()


def test_slot_drops_a_connection_that_its_answer_ended(server: Misbehaving) -> None:
    slot = Slot(Origin(server.url_of("until_close")))
    assert [ask(slot)[1].reused for _ in range(2)] == [False, False]
    assert server.connections == 2


def test_slot_replaces_a_connection_closed_while_idle(server: Misbehaving) -> None:
    good = misbehaving.stream(*misbehaving.GOOD)

    def answer_and_close(peer: socket.socket) -> None:
        peer.sendall(good)
        peer.close()

    server.modes["closing"] = answer_and_close
    slot = Slot(Origin(server.url_of("closing")))
    assert ask(slot)[0]["outcome"] == "ok"
    kept = slot._idle
    assert kept is not None
    until(kept.is_stale)
    second = ask(slot)[0]
    assert (second["outcome"], second["detail"]["stale_retry"]) == ("ok", 1)
    assert server.connections == 2
    slot.close()


def drop_each_fifteenth(server: Misbehaving, drop: Callable[[Any], None]) -> Callable[[Any], None]:
    """Read every request; answer 14 of 15, and drop the connection of the other."""

    def act(peer: socket.socket) -> None:
        if len(server.requests) % 15:
            peer.sendall(misbehaving.stream(*misbehaving.GOOD))
        else:
            drop(peer)

    return act


@pytest.mark.parametrize("drop", [reset, misbehaving.close])
def test_exchange_dropped_on_a_busy_connection_is_a_reset_and_not_sent_again(server: Misbehaving, drop: Any) -> None:
    server.modes["dropping"] = drop_each_fifteenth(server, drop)
    slot = Slot(Origin(server.url_of("dropping")))
    replies = [ask(slot)[0] for _ in range(60)]
    assert Counter(r["outcome"] for r in replies) == {"ok": 56, "reset": 4}
    told = (
        "the server closed the kept-alive connection as this request came, without a `Connection: close` before: it closed "
        "it after its last answer, or dropped this request"
    )
    assert {r["error"] for r in replies if r["error"]} == {told}
    assert len(server.requests) == 60, "each was sent once"
    assert not any("resent" in r["detail"] or "stale_retry" in r["detail"] for r in replies)
    slot.close()


def test_exchange_dropped_while_the_server_works_on_it_tells_no_early_close(server: Misbehaving) -> None:
    def drop(peer: socket.socket) -> None:
        time.sleep(0.3)
        misbehaving.close(peer)

    server.modes["dropping"] = drop_each_fifteenth(server, drop)
    slot = Slot(Origin(server.url_of("dropping")))
    last = [ask(slot)[0] for _ in range(15)][-1]
    assert (last["outcome"], last["error"]) == (
        "reset",
        "the server closed the connection before the end of its answer",
    )
    slot.close()


@pytest.mark.parametrize("drop", [reset, misbehaving.close])
def test_exchange_dropped_on_an_idle_connection_is_sent_again_and_counted(server: Misbehaving, drop: Any) -> None:
    server.modes["dropping"] = drop_each_fifteenth(server, drop)
    slot = Slot(Origin(server.url_of("dropping")))
    limits = WireTimeouts(retry_idle_ns=0)  # any idle time is longer
    replies = [Behaviour().act(call(slot, limits)) for _ in range(29)]
    assert {r["outcome"] for r in replies} == {"ok"}
    assert [r["detail"].get("resent") for r in replies].count(1) == 2
    assert len(server.requests) == 31
    slot.close()


def test_exchange_is_sent_again_only_after_half_a_second_of_idle(server: Misbehaving) -> None:
    server.modes["dropping"] = drop_each_fifteenth(server, misbehaving.close)
    slot = Slot(Origin(server.url_of("dropping")))
    for idle_ns, outcome in ((400_000_000, "reset"), (600_000_000, "ok")):
        server.requests[:] = [b""] * 13
        assert ask(slot)[0]["outcome"] == "ok"
        assert slot._idle is not None
        slot._idle.idle_since_ns -= idle_ns
        assert ask(slot)[0]["outcome"] == outcome
    slot.close()


def test_exchange_is_not_sent_again_after_a_byte_or_a_second_drop(server: Misbehaving) -> None:
    limits = WireTimeouts(retry_idle_ns=0)
    for broken in (misbehaving.then(b"HTTP/1.1 200 OK", misbehaving.close), misbehaving.close):
        server.requests.clear()
        server.modes["second"] = _good_then(server, broken)
        slot = Slot(Origin(server.url_of("second")))
        assert Behaviour().act(call(slot, limits))["outcome"] == "ok"
        assert Behaviour().act(call(slot, limits))["outcome"] == "reset"
        assert len(server.requests) == (2 if broken is not misbehaving.close else 3)
        slot.close()


def _good_then(server: Misbehaving, broken: Handler) -> Handler:
    """Break the second to the ninth exchange; a client that repeats without end comes to an end."""
    return lambda peer: (
        broken(peer) if 1 < len(server.requests) < 10 else peer.sendall(misbehaving.stream(*misbehaving.GOOD))
    )


def test_exchange_is_not_sent_again_when_the_connection_closes_late(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadchaos.load.wire.exchange._STALE_WITHIN_NS", 20_000_000)

    def late(peer: socket.socket) -> None:
        time.sleep(0.1)
        peer.close()

    server.modes["late"] = _good_then(server, late)
    slot = Slot(Origin(server.url_of("late")))
    limits = WireTimeouts(retry_idle_ns=0)
    assert [Behaviour().act(call(slot, limits))["outcome"] for _ in range(2)] == ["ok", "reset"]
    assert len(server.requests) == 2
    slot.close()


def test_exchange_does_not_retry_on_a_fresh_connection(server: Misbehaving) -> None:
    reply = ask(Slot(Origin(server.url_of("closed_before_headers"))))[0]
    assert (reply["outcome"], reply["detail"].get("resent")) == ("reset", None)
    assert server.connections == 1


def test_slot_drops_a_connection_idle_for_too_long(server: Misbehaving, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = Slot(Origin(server.url_of("good")))
    ask(slot)
    monkeypatch.setattr(sockets, "MAX_IDLE_NS", 0)
    reply, second = ask(slot)
    assert (reply["outcome"], second.reused, second.connection_number) == ("ok", False, 2)
    assert "stale_retry" not in reply["detail"]
    slot.close()


def test_exchange_end_wakes_a_waiting_reader(server: Misbehaving) -> None:
    one = call(Slot(Origin(server.url_of("never"))))
    replies: list[EndRow] = []
    waiter = threading.Thread(target=lambda: replies.append(Behaviour().act(one)))
    waiter.start()
    until(lambda: one.sent_ns is not None)
    one.end("hung_up", "stopped")
    waiter.join(5)
    assert replies[0]["outcome"] == "aborted"
    assert replies[0]["detail"]["why"] == "stopped"


def test_connection_over_tls_checks_the_certificate(server: Misbehaving, certificate: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            raw, _ = listener.accept()
            try:
                with served.wrap_socket(raw, server_side=True) as peer:
                    while read_request(peer):
                        peer.sendall(misbehaving.stream(*misbehaving.GOOD))
            except OSError:
                raw.close()  # the client did not trust us

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"https://localhost:{listener.getsockname()[1]}"
    slot = Slot(Origin(url, ssl.create_default_context(cafile=str(certificate))))
    assert [ask(slot)[0]["outcome"], ask(slot)[0]["outcome"]] == ["ok", "ok"]
    assert slot.opened == 1
    slot.close()
    reply = ask(Slot(Origin(url)))[0]
    assert reply["outcome"] == "connect_error"
    assert "CERTIFICATE" in (reply["error"] or "").upper()
    thread.join(5)
    listener.close()


def test_exchange_connect_is_bounded_by_the_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def connect(_: Origin, __: int, timeout_s: float, **___: Any) -> Any:
        seen.append(timeout_s)
        raise TimeoutError("timed out")

    monkeypatch.setattr(sockets.Connection, "open", connect)
    begun = time.monotonic_ns()
    reply = Behaviour().act(call(Slot(Origin("http://127.0.0.1:1")), WireTimeouts(first_byte_ns=2_000_000_000)))
    assert reply["outcome"] == "connect_error"
    assert seen == [2.0]
    assert reply["at_ns"] >= begun
