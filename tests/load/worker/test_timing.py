import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.load.worker.conftest import Child
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, ConnectionServer, chunk, read_request
from tests.rows import S

FIRST_S, GAP_S, TOKENS = 0.05, 0.02, 5


@dataclass(frozen=True)
class Paced:
    """A server that answers one request at a time and records token times."""

    url: str
    left_ns: dict[str, list[int]] = field(default_factory=dict)


def event(text: str) -> bytes:
    return chunk(f"data: {text}\n\n".encode())


@pytest.fixture
def paced() -> Iterator[Paced]:
    one_at_a_time = threading.Lock()
    left_ns: dict[str, list[int]] = {}

    def answer(peer: socket.socket, request_id: str) -> None:
        left = left_ns[request_id] = []
        peer.sendall(SSE_HEAD + event('{"choices":[{"index":0,"delta":{"role":"assistant"}}]}'))
        time.sleep(FIRST_S)
        for n in range(TOKENS):
            finish = '"stop"' if n + 1 == TOKENS else "null"
            left.append(time.monotonic_ns())
            peer.sendall(event(f'{{"choices":[{{"index":0,"delta":{{"content":"a"}},"finish_reason":{finish}}}]}}'))
            time.sleep(GAP_S)
        peer.sendall(event("[DONE]") + LAST_CHUNK)

    def serve(peer: socket.socket) -> None:
        while request := read_request(peer):
            with one_at_a_time:
                answer(peer, request.partition(b"X-Request-Id: ")[2].partition(b"\r\n")[0].decode())

    with ConnectionServer(serve) as server:
        yield Paced(server.url, left_ns)


def test_timing_is_the_servers_and_includes_the_queue_of_a_slow_one(paced: Paced, child: Child) -> None:
    """One user first; then 40 requests a second to a server that answers 6.

    The wait grows, and due times stay as planned.
    """
    child.plan(
        paced, [{"users": 1, "requests": 10}, {"rate": "40/s", "law": "constant", "for": "0.5s", "max_in_flight": 64}]
    )
    child.start()
    assert child.wait(120) == 0, child.log()
    ends = child.rows("end")
    assert [r["outcome"] for r in ends] == ["ok"] * 30
    late = [r["first_token_ns"] - paced.left_ns[r["id"]][0] for r in ends]
    assert min(late) >= 0, "no token comes before it was sent"
    assert min(late) < 5_000_000, "at its best the figure is the server's own"
    for row in ends:
        assert row["first_token_ns"] - row["sent_ns"] >= FIRST_S * S
        assert row["last_byte_ns"] >= paced.left_ns[row["id"]][-1]
        assert sum(row["itl_hist"].values()) <= TOKENS - 1
    assert max(r["largest_gap_ns"] for r in ends) >= 0.9 * GAP_S * S
    queued = sorted((r for r in ends if r["phase"] == 1), key=lambda r: int(r["due_ns"]))
    assert queued[-1]["due_ns"] - queued[0]["due_ns"] < 0.6 * S, "due times follow the plan, not the server"
    waited_s = max((r["first_token_ns"] - r["due_ns"]) / S for r in queued)
    assert waited_s > 19 * (FIRST_S + (TOKENS - 1) * GAP_S) - 0.5, "whoever comes last has waited for all the others"
