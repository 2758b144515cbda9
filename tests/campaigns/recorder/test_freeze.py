import asyncio
import socket
import time
from typing import Any

import pytest
import uvloop

from loadchaos.campaigns.recorder.freeze import FEWEST, FreezeWatch, says_dead
from loadchaos.campaigns.recorder.proxy import Upstream
from loadchaos.campaigns.recorder.recorder import is_dead
from loadchaos.campaigns.recorder.tap import TappedExchange
from tests.campaigns.recorder.conftest import plain
from tests.raw_sockets import ConnectionServer, Handler, read_request, reset

DEAD = b'{"error":{"message":"EngineCore encountered an issue. EngineDeadError"}}'


def ended(outcome: Any, status: int = 200, text: bytes = b"", at_ns: int | None = None) -> TappedExchange:
    exchange = TappedExchange(1, time.monotonic_ns() if at_ns is None else at_ns, "POST", b"/v1/completions")
    exchange.outcome, exchange.status, exchange.tail = outcome, status, (b"", b"", text)
    return exchange


def test_refused_connection_is_a_death_once_until_the_server_answers() -> None:
    watch = FreezeWatch(None)
    assert watch.feed(ended("connect_error", 0)) is None  # it was never there
    watch.feed(ended("ok"))
    assert watch.feed(ended("connect_error", 0)) == "engine died: the server refuses connections"
    assert watch.feed(ended("connect_error", 0)) is None
    watch.feed(ended("ok"))
    assert watch.feed(ended("connect_error", 0)) is not None


def test_answers_beside_a_dead_engine_and_from_before_its_death_do_not_count() -> None:
    watch = FreezeWatch(None)
    before_ns = time.monotonic_ns()
    watch.feed(ended("ok"))
    assert watch.feed(ended("http_error", 500, DEAD)) is not None
    watch.feed(ended("ok", at_ns=before_ns))
    page = TappedExchange(2, time.monotonic_ns(), "GET", b"/metrics")
    page.outcome = "ok"
    watch.feed(page)
    assert watch.feed(ended("http_error", 500, DEAD)) is None
    watch.feed(ended("ok"))
    assert watch.feed(ended("http_error", 500, DEAD)) is not None


def test_answer_of_a_dead_engine_is_a_death() -> None:
    watch = FreezeWatch(None)
    watch.feed(ended("ok"))
    assert watch.feed(ended("http_error", 500, b'{"error":"out of luck"}')) is None
    assert "its engine is dead" in str(watch.feed(ended("http_error", 500, DEAD)))


def test_client_that_speaks_of_a_death_is_none() -> None:
    watch = FreezeWatch(None)
    watch.feed(ended("ok"))
    assert watch.feed(ended("ok", 200, DEAD)) is None
    assert watch.feed(ended("rejected", 400, DEAD)) is None
    assert not says_dead(400, DEAD)


def test_cut_answer_only_makes_suspicious() -> None:
    watch = FreezeWatch(None)
    watch.feed(ended("ok"))
    assert watch.feed(ended("reset")) is None
    assert watch.suspect


def test_first_death_counts_though_no_request_has_completed() -> None:
    watch = FreezeWatch(None)
    streams = [ended("reset") for _ in range(20)]
    assert [watch.feed(stream) for stream in streams] == [None] * 20
    assert watch.died("the server refuses connections") is not None
    assert watch.feed(ended("connect_error", 0)) is None, "the same death"
    assert watch.feed(streams[0]) is None
    assert watch.died("the server refuses connections") is None, "cut by the first death"
    watch.feed(ended("truncated"))
    assert watch.died("the server refuses connections") is not None, "the restarted server accepted a request"


def test_stream_with_tokens_that_names_a_death_shows_that_the_server_lived() -> None:
    stream = ended("stream_error", 200, DEAD)
    stream.tokens = 3
    assert "its engine is dead" in str(FreezeWatch(None).feed(stream))


def test_error_rate_needs_enough_requests_and_rearms() -> None:
    watch = FreezeWatch(0.5)
    assert [watch.feed(ended("http_error", 500)) for _ in range(FEWEST - 1)] == [None] * (FEWEST - 1)
    assert watch.feed(ended("http_error", 500)) == f"error rate: {FEWEST} of {FEWEST} requests failed in 30 s"
    assert watch.feed(ended("http_error", 500)) is None
    for _ in range(4 * FEWEST):
        watch.feed(ended("ok"))
    assert [r for _ in range(6 * FEWEST) if (r := watch.feed(ended("http_error", 500)))] != []


def test_share_of_errors_below_the_limit_keeps_nothing() -> None:
    watch = FreezeWatch(0.5)
    assert [r for n in range(4 * FEWEST) if (r := watch.feed(ended("http_error" if n % 2 else "ok", 500)))] == []


def test_aborts_and_refusals_of_bad_requests_are_no_errors() -> None:
    watch = FreezeWatch(0.1)
    for _ in range(FEWEST):
        assert watch.feed(ended("rejected", 400)) is None
        assert watch.feed(ended("aborted")) is None


def test_server_that_resets_a_connection_at_once_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reset comes before the connection is open, or after it."""

    async def reset_at_once(*_: Any, **__: Any) -> Any:
        raise ConnectionResetError

    monkeypatch.setattr(asyncio, "open_connection", reset_at_once)
    assert uvloop.run(is_dead(Upstream("localhost", 9))) == "the server resets connections"


def refuse(c: socket.socket) -> None:
    reset(c)


def unhealthy(c: socket.socket) -> None:
    read_request(c)
    c.sendall(plain(DEAD, b"503 Service Unavailable"))


def starting(c: socket.socket) -> None:
    read_request(c)
    c.sendall(plain(b"loading the model", b"503 Service Unavailable"))


def healthy(c: socket.socket) -> None:
    read_request(c)
    c.sendall(plain(b""))


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        (refuse, "the server resets connections"),
        (read_request, "the server resets connections"),  # it closes without an answer
        (unhealthy, "/health says that its engine is dead"),
        (starting, None),
        (healthy, None),
    ],
)
def test_server_is_asked_after_a_cut_answer(handler: Handler, found: str | None) -> None:
    server = ConnectionServer(handler)
    assert uvloop.run(is_dead(Upstream("127.0.0.1", server.port))) == found
    server.close()


def test_server_that_does_not_listen_is_dead(unused_port: int) -> None:
    assert uvloop.run(is_dead(Upstream("127.0.0.1", unused_port))) == "the server refuses connections"
