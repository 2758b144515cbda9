"""The HTTP/1.1 parser: framing, reuse and clean ends, for any packets."""

import gzip
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.load.wire import http1
from loadchaos.load.wire.http1 import MAX_DECODED_BYTES, MAX_HEAD_BYTES, ResponseParser

SAID = ("status", "reason", "version", "headers", "has_head", "done", "reusable", "broken", "request_id")
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\nX-Trailer: 1\r\n\r\n"
)


def said(parser: ResponseParser, name: str) -> object:
    """A known head is not copied for its request's id."""
    value = getattr(parser, name)
    return {k: v for k, v in value.items() if k != "x-request-id"} if name == "headers" else value


def feed(parser: ResponseParser, data: bytes, size: int) -> bytes:
    return b"".join(parser.feed(data[i : i + size]) for i in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_http1_parser_joins_a_chunked_body_from_any_pieces(size: int) -> None:
    parser = ResponseParser()
    assert feed(parser, CHUNKED, size) == b"hello!"
    assert (parser.done, parser.reusable, parser.broken) == (True, True, None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_http1_parser_records_interim_responses(size: int) -> None:
    parser = ResponseParser()
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + CHUNKED
    assert feed(parser, data, size) == b"hello!"
    assert (parser.interim, parser.status) == ([100, 103], 200)


@given(body=st.binary(max_size=300), size=st.integers(1, 50), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_http1_parser_returns_any_body_in_any_chunks_and_packets(body: bytes, size: int, sizes: list[int]) -> None:
    data, at, n = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0, 0
    while at < len(body):
        part = body[at : at + sizes[n % len(sizes)]]
        data += b"%X\r\n%s\r\n" % (len(part), part)
        at, n = at + len(part), n + 1
    parser = ResponseParser()
    assert feed(parser, data + b"0\r\n\r\n", size) == body
    assert parser.done


@given(
    data=st.binary(max_size=200),
    begin=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED[:60], b"HTTP/1.0 ", CHUNKED]),
    size=st.integers(1, 40),
)
def test_http1_parser_never_raises_for_any_bytes(data: bytes, begin: bytes, size: int) -> None:
    parser = ResponseParser()
    feed(parser, begin + data, size)
    parser.eof()


def test_http1_parser_keeps_to_the_length_and_returns_excess() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef") == b"abc"
    assert (parser.done, parser.excess, parser.reusable) == (True, b"def", False)


def test_http1_parser_body_cut_before_its_length_is_not_done() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc")
    parser.eof()
    assert not parser.done


def test_http1_parser_body_until_close_ends_with_the_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") == b"abc"
    assert not parser.done
    parser.eof()
    assert (parser.done, parser.reusable) == (True, False)


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo, Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_http1_parser_decides_if_the_connection_is_reusable(head: bytes, reusable: bool) -> None:
    parser = ResponseParser()
    parser.feed(head)
    assert (parser.done, parser.reusable) == (True, reusable)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_http1_parser_undoes_unrequested_compression(pack: object) -> None:
    assert callable(pack)
    body = pack(b"hello " * 100)
    encoding = b"gzip" if pack is gzip.compress else b"deflate"
    parser = ResponseParser()
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body))
    assert feed(parser, head + body, 13) == b"hello " * 100


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n continues: no header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES,
    ],
)
def test_http1_parser_reports_bytes_that_are_not_http(data: bytes) -> None:
    parser = ResponseParser()
    parser.feed(data)
    assert parser.broken
    assert not parser.done


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("size", [1, 1000])
def test_http1_parser_joins_a_header_that_goes_on_in_the_next_line(end: bytes, size: int) -> None:
    for request_id in (b"one", b"two"):  # the second time from the cache of heads
        parser = ResponseParser()
        folded = [b"X-Note: a,", b"\tb", b"x-request-id: " + request_id, b"  folded"]
        lines = [b"HTTP/1.1 200 OK", *folded, b"Content-Length: 2"]
        assert feed(parser, end.join([*lines, b"", b"hi"]), size) == b"hi"
        assert parser.headers["x-note"] == "a, b"
        assert parser.request_id == request_id.decode() + " folded"


def test_http1_parser_returns_bytes_before_the_broken_one() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n") == b"ab"
    assert parser.broken


WORD = st.text("abc-019 ,", max_size=9).map(str.encode)
NAME = st.sampled_from([b"x-request-id", b"X-Request-ID"])
OTHERS = [
    b"Server: uvicorn",
    b"Content-Length: 0",
    b"Content-Length: 3",
    b"Connection: close",
    b"x-request-id",
    b"X-Other: x-request-id: 1",
    b" folded",
]
LINE = st.builds(b"%s:%s%s".__mod__, st.tuples(NAME, st.sampled_from([b" ", b""]), WORD)) | st.sampled_from(OTHERS)


@given(heads=st.lists(st.lists(LINE, max_size=5), min_size=2, max_size=6), body=st.sampled_from([b"", b"a", b"abc"]))
def test_http1_parser_head_cache_does_not_change_heads(heads: list[list[bytes]], body: bytes) -> None:
    for lines in heads * 2:
        raw = b"\r\n".join([b"HTTP/1.1 200 OK", *lines])
        known, anew = ResponseParser(), ResponseParser()
        begun = known.feed(raw + b"\r\n\r\n" + body)
        kept = dict(http1._heads)
        http1._heads.clear()
        # By lines that end with LF alone ids are not looked for.
        assert begun == anew.feed(raw.replace(b"\r\n", b"\n") + b"\n\n" + body)
        http1._heads.update(kept)
        assert [said(known, k) for k in SAID] == [said(anew, k) for k in SAID]


@pytest.mark.parametrize(
    ("length", "body", "more"),
    [(3, b"abc", b""), (3, b"ab", b"c"), (2, b"abc", b""), (3, b"", b"abc"), (0, b"", b"")],
)
def test_http1_parser_reads_a_known_head_as_a_new_one(length: int, body: bytes, more: bytes) -> None:
    found = []
    for name in (b"x-request-id", b"x-request-id", b"X-Request-Id"):
        parser = ResponseParser()
        begun = parser.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%s: 7-a\r\n\r\n%s" % (length, name, body))
        found.append((begun, parser.feed(more), parser.excess, *(said(parser, k) for k in SAID)))
    assert found[0] == found[1] == found[2]
    assert found[0][-1] == "7-a"


def test_response_parser_bounds_a_decoded_body() -> None:
    packed = zlib.compress(b" " * (MAX_DECODED_BYTES + 1))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    parser = ResponseParser()
    body = b"".join(parser.feed(piece) for piece in (head, packed[:1000], packed[1000:]))
    assert len(body) <= MAX_DECODED_BYTES
    assert parser.broken == "the compressed body is longer than 64 MiB once decoded"
    assert not parser.reusable


class Unpacker:
    """Notes the largest piece that the real unpacker gave."""

    def __init__(self, real: Any) -> None:
        self.real, self.largest = real, 0

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        plain: bytes = self.real.decompress(data, max_length)
        self.largest = max(self.largest, len(plain))
        return plain

    @property
    def eof(self) -> bool:
        eof: bool = self.real.eof
        return eof


def test_response_parser_unpacks_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MAX_DECODED_BYTES", 1 << 20)
    packed = gzip.compress(b" " * (8 << 20))
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed))
    parser._inflate = unpacker = Unpacker(parser._inflate)
    parser.feed(packed)
    assert parser.broken
    assert unpacker.largest <= (1 << 20) + 1


def test_response_parser_reports_a_truncated_compressed_body() -> None:
    packed = gzip.compress(bytes(range(256)) * 8)[:-9]
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)
    assert parser.broken == "the compressed body is truncated"
    assert not (parser.done or parser.reusable)
