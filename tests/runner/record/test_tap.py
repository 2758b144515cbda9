"""Pieces of a stream are parsed together, and counted as if each were parsed when it came."""

from __future__ import annotations

import httptools
import pytest

from loadchaos.runner.record import tap as taps
from loadchaos.runner.record.tap import ConnectionTap
from tests.runner.record.conftest import DONE, LAST_CHUNK, SSE_HEAD, SeenExchanges, event, post


def streaming(times: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[ConnectionTap, SeenExchanges]:
    """A tap inside a stream; `times` are those of its next pieces."""
    seen = SeenExchanges()
    tap = ConnectionTap(seen)
    tap.feed_request(post(b"{}"))
    tap.feed_answer(SSE_HEAD)
    monkeypatch.setattr(taps, "monotonic_ns", lambda: times.pop(0))
    return tap, seen


def test_tap_counts_kept_pieces_at_their_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    tap, seen = streaming([100, 130, 190, 200], monkeypatch)
    for piece in (event("one"), event("two"), event("three")):
        tap.feed_answer(piece)
    (exchange,) = seen.begun
    assert exchange.tokens == 0
    exchange.parse()
    assert (exchange.tokens, exchange.first_ns, exchange.last_ns, exchange.gap_ns) == (3, 100, 190, 60)
    tap.feed_answer(event(None, "stop") + DONE + LAST_CHUNK)
    assert [(e.outcome, e.last_ns) for e in seen.ended] == [("ok", 200)]


def test_tap_does_not_keep_the_end_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    end = event(None, "stop") + DONE + LAST_CHUNK
    for cut in (3, 4, 5):  # inside the last chunk
        tap, seen = streaming(list(range(9)), monkeypatch)
        tap.feed_answer(end[:-cut])
        tap.feed_answer(end[-cut:])
        assert [e.outcome for e in seen.ended] == ["ok"]
        assert not tap.answering


def test_tap_keeps_a_limited_number_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tap, seen = streaming(list(range(1000)), monkeypatch)
    for _ in range(taps._LATER):
        tap.feed_answer(event("x"))
    assert seen.begun[0].tokens == taps._LATER


def test_tap_raises_for_kept_pieces_that_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tap, seen = streaming(list(range(9)), monkeypatch)
    tap.feed_answer(b"this is no chunk of an HTTP answer\r\n")
    seen.begun[0].parse()  # who asks for counts is not to blame
    with pytest.raises(httptools.HttpParserError):
        tap.feed_answer(event("one"))
    with pytest.raises(httptools.HttpParserError):
        tap.end("client_closed")


@pytest.mark.parametrize("reason", ["client_closed", "upstream_closed"])
def test_tap_counts_kept_pieces_at_the_end_of_the_connection(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tap, seen = streaming(list(range(9)), monkeypatch)
    tap.feed_answer(event("one"))
    tap.feed_answer(event("two"))
    tap.end(reason)
    assert [(e.outcome, e.tokens) for e in seen.ended] == [("aborted" if reason == "client_closed" else "truncated", 2)]
