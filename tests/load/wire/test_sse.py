import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.load.wire.sse import MAX_EVENT_BYTES, Event, SseParser

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
FIELD = st.sampled_from(
    [b"data: ", b"data:", b"data:  ", b"event: ", b"id: ", b"retry: ", b": ", b":", b"x: ", b"data", b""]
)
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8).map(str.encode)
LINES = st.lists(st.tuples(FIELD, TEXT, ENDS), max_size=20)
STREAM = LINES.map(lambda lines: b"".join(f + t + e for f, t, e in lines))


def parse(*pieces: bytes) -> list[Event]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    last = parser.close()
    return [*events, last] if last is not None else events


@given(stream=STREAM, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_sse_parser_gives_equal_events_for_any_split(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    assert parse(*pieces) == parse(stream)
    assert parse(*[stream[i : i + 1] for i in range(len(stream))]) == parse(stream)


@given(
    texts=st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1), max_size=6
    ),
    end=ENDS,
)
def test_sse_parser_returns_data_as_sent(texts: list[str], end: bytes) -> None:
    stream = b"".join(b"data: " + text.encode() + end + end for text in texts)
    assert [e.data.decode() for e in parse(stream)] == texts


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [Event(b"a", "")]),
        (b"data:a\n\n", [Event(b"a", "")]),
        (b"data:  a\n\n", [Event(b" a", "")]),
        (b"data: a\ndata: b\n\n", [Event(b"a\nb", "")]),
        (b"data\n\n", [Event(b"", "")]),
        (b"event: error\ndata: {}\n\n", [Event(b"{}", "error")]),
        (b"event: ping\n\ndata: a\n\n", [Event(b"a", "")]),
        (b": comment\n\ndata: a\n\n", [Event(b"a", "")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event(b"a", "")]),
        (b"id: 1\nretry: 5\nnonsense\ndata: a\n\n", [Event(b"a", "")]),
        (b"data: a\r\n\r\ndata: b\r\r", [Event(b"a", ""), Event(b"b", "")]),
        (b"\n\n\ndata: a\n\n\n\n", [Event(b"a", "")]),
        (b"data: a\xe2\x80\xa8b\xc2\x85c\n\n", [Event(b"a\xe2\x80\xa8b\xc2\x85c", "")]),
        (b"data: begun", [Event(b"begun", "")]),
    ],
)
def test_sse_parser_follows_the_standard(stream: bytes, events: list[Event]) -> None:
    assert parse(stream) == events


def test_sse_parser_counts_comments() -> None:
    parser = SseParser()
    parser.feed(b": ping\n\n: pi")
    parser.feed(b"ng\r\n\r\n")
    assert parser.comments == 2


def _cpu_s(parser: SseParser, stream: bytes, size: int) -> float:
    begun = time.process_time()
    for at in range(0, len(stream), size):
        parser.feed(stream[at : at + size])
    return time.process_time() - begun


def test_sse_parser_takes_linear_time_for_a_long_line() -> None:
    """A line of 2 MB in packets cost seconds; one of twice the size four times as much."""
    short, long = (min(_cpu_s(SseParser(), b"data: " + b"x" * n, 1400) for _ in range(2)) for n in (1 << 19, 2 << 20))
    assert long < 0.5
    assert long < 10 * short + 0.05


@pytest.mark.parametrize("line", [b"x" * 1400, b"data: " + b"x" * 1393 + b"\n"])
def test_sse_parser_stops_at_an_event_without_end(line: bytes) -> None:
    parser = SseParser()
    assert _cpu_s(parser, b"data: " + line * (2 * MAX_EVENT_BYTES // 1400), 1400) < 3
    assert parser.too_long
    assert parser.feed(b"\n\ndata: a\n\n") == []
    assert parser.close() is None


def test_sse_parser_bound_is_for_one_event() -> None:
    parser = SseParser()
    event = b"data: " + b"x" * (MAX_EVENT_BYTES // 2) + b"\n\n"
    found = [e for _ in range(6) for half in (event[:1000], event[1000:-1], event[-1:]) for e in parser.feed(half)]
    assert len(found) == 6
    assert not parser.too_long
