import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bench.server import NO_EVENT, LoadServer, NoCompilerError, Pace, build, has_openssl
from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.behaviours import Behaviour
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.sockets import Origin, Slot
from tests.load.wire.requests import wire_request
from tests.waiting import until

PACE = Pace(events=25, gap_us=1000, ttft_us=5000, spread_us=3000)
USERS, EACH = 4, 3


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        build("server.c")
    except NoCompilerError as e:
        pytest.skip(f"the load server cannot be built: {e}")


@pytest.fixture(params=["plain", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[LoadServer]:
    tls = request.param == "tls"
    if tls and not has_openssl():
        pytest.skip("OpenSSL's headers are not installed")
    with LoadServer(PACE, tls=tls, stamps=True) as server:
        yield server


def ask(server: LoadServer, *, stream: bool, padding: int = 0) -> list[EndRow]:
    """Users run side by side, each with one connection."""
    trust = ssl.create_default_context(cafile=server.certificate) if server.certificate else None
    target = Origin(server.url, trust)
    body = b'{"model":"bench","p":"%s","stream":%s}' % (b"x" * padding, b"true" if stream else b"false")

    def user(_: int) -> list[EndRow]:
        slot = Slot(target)
        sending = wire_request(target, body, stream=stream)
        replies = [Behaviour().act(Exchange(sending, slot, Progress())) for _ in range(EACH)]
        slot.close()
        return replies

    with ThreadPoolExecutor(USERS) as pool:
        return [reply for replies in pool.map(user, range(USERS)) for reply in replies]


def settled(server: LoadServer) -> None:
    until(lambda: not server.counters().open, "that everybody hung up")


def test_load_server_streams_agree_on_requests_tokens_and_clock(server: LoadServer) -> None:
    replies = ask(server, stream=True)
    settled(server)
    count = server.counters()
    server.end()
    assert [r["outcome"] for r in replies] == ["ok"] * (USERS * EACH)
    assert (count.connections, count.begun, count.ended, count.cut, count.refused) == (USERS, 12, 12, 0, 0)
    assert sum(r["chunks"] for r in replies) == count.events == 12 * PACE.events
    assert {r["completion_tokens"] for r in replies} == {PACE.events}
    tokens = server.stamps[server.stamps["event"] != NO_EVENT]
    first = {f"bench-{s['stream']:08d}": int(s["sent_ns"]) for s in tokens[tokens["event"] == 0]}
    assert sorted(first) == sorted(str(r["request_id"]) for r in replies)
    assert all((r["first_token_ns"] or 0) > first[str(r["request_id"])] for r in replies), (
        "one clock, and cause before effect"
    )
    assert all(sum(r["itl_hist"].values()) < r["chunks"] for r in replies), "gaps are between chunks"
    assert np.all(tokens["sent_ns"] >= tokens["due_ns"])


def test_load_server_agrees_on_complete_answers_and_long_bodies(server: LoadServer) -> None:
    replies = ask(server, stream=False, padding=400_000)
    count = server.counters()
    assert [(r["outcome"], r["completion_tokens"]) for r in replies] == [("ok", 8)] * 12
    assert (count.begun, count.ended, count.events) == (12, 12, 0)
    replies = ask(server, stream=True, padding=400_000)  # what asks for a stream stands behind all that
    assert server.counters().events == sum(r["chunks"] for r in replies) == 12 * PACE.events
