import random

import httptools
import pytest

from loadchaos.campaigns.recorder import tap as taps
from loadchaos.campaigns.recorder.tap import ConnectionTap
from tests.campaigns.recorder.conftest import DONE, SeenExchanges, event, post
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, chunk


def streaming(times: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[ConnectionTap, SeenExchanges]:
    """A tap inside a stream; `times` are those of its next pieces."""
    seen = SeenExchanges()
    tap = ConnectionTap(seen)
    tap.feed_request(post(b"{}"))
    tap.feed_answer(SSE_HEAD)
    monkeypatch.setattr(taps, "monotonic_ns", lambda: times.pop(0))
    return tap, seen


def test_tap_counts_pieces_at_their_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    tap, seen = streaming([100, 130, 190, 200], monkeypatch)
    for piece in (event("one"), event("two"), event("three")):
        tap.feed_answer(piece)
    (exchange,) = seen.begun
    assert (exchange.tokens, exchange.first_ns, exchange.last_ns, exchange.gap_ns) == (3, 100, 190, 60)
    tap.feed_answer(event(None, "stop") + DONE + LAST_CHUNK)
    assert [(e.outcome, e.last_ns) for e in seen.ended] == [("ok", 200)]


def test_tap_reads_the_end_of_an_answer_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    end = event(None, "stop") + DONE + LAST_CHUNK
    for cut in range(1, len(end)):
        tap, seen = streaming(list(range(9)), monkeypatch)
        tap.feed_answer(event("one"))
        tap.feed_answer(end[:-cut])
        tap.feed_answer(end[-cut:])
        assert [(e.outcome, e.finish(), e.tokens) for e in seen.ended] == [("ok", "stop", 3)]
        assert not tap.answering


def test_tap_reads_folded_headers() -> None:
    seen = SeenExchanges()
    tap = ConnectionTap(seen)
    tap.feed_request(post(b"{}"))
    tap.feed_answer(b"HTTP/1.1 500 X\r\nVia: one,\r\n\ttwo\r\nContent-Length:\r\n 2\r\n\r\n{}")
    assert [e.outcome for e in seen.ended] == ["http_error"]


EVENT = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'


STREAMS = {
    "an event a chunk": [chunk(EVENT % b"word") for _ in range(20)],
    "several events a chunk": [chunk(EVENT % b"a" + EVENT % b"b") for _ in range(10)],
    "half an event a chunk": [chunk(part) for _ in range(10) for part in ((EVENT % b"w")[:9], (EVENT % b"w")[9:])],
    "ends between its newlines": [chunk(part) for _ in range(5) for part in ((EVENT % b"w")[:-1], b"\n")],
    "CRLF": [chunk((EVENT % b"word").replace(b"\n", b"\r\n")) for _ in range(9)],
}


@pytest.mark.parametrize("name", STREAMS)
def test_tap_counts_the_same_however_a_stream_is_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole chunks are counted without the parser, other pieces by the parser."""
    last = FINISH.replace(b"\n", b"\r\n") if name == "CRLF" else FINISH
    stream = [*STREAMS[name], chunk(last), DONE, LAST_CHUNK]
    whole = b"".join(stream)
    rng, counts = random.Random(0), set()
    for length in (1, 2, 3, 7, 50, 51, 52, 53, 54, 1000, *[0] * 40):
        pieces = stream if length == 1000 else []
        while sum(map(len, pieces)) < len(whole):
            begin = sum(map(len, pieces))
            pieces.append(whole[begin : begin + (length or rng.choice((1, 5, 8, 50, 53, 120)))])
        tap, seen = streaming(list(range(10_000)), monkeypatch)
        for piece in pieces:
            tap.feed_answer(piece)
        (exchange,) = seen.ended
        assert exchange.outcome == "ok"
        counts.add((exchange.got_bytes, exchange.events))
    assert len(counts) == 1


def test_tap_raises_for_pieces_that_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tap, _ = streaming(list(range(9)), monkeypatch)
    tap.feed_answer(event("one"))
    with pytest.raises(httptools.HttpParserError):
        tap.feed_answer(b"this is no chunk of an HTTP answer\r\n")


@pytest.mark.parametrize("reason", ["client_closed", "upstream_closed"])
def test_tap_counts_pieces_until_the_end_of_the_connection(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tap, seen = streaming(list(range(9)), monkeypatch)
    tap.feed_answer(event("one"))
    tap.feed_answer(event("two"))
    tap.end(reason)
    assert [(e.outcome, e.tokens) for e in seen.ended] == [("aborted" if reason == "client_closed" else "reset", 2)]
