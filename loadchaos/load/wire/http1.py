"""Parse HTTP/1.1 responses incrementally: framing, clean end, reuse.

Sans-I/O and our own, because a load tester has to know what general parsers hide: if a body that ran until the close
was promised so, if the last chunk came, which bytes stood there when it was not HTTP at all. RFC 9112.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from loadchaos.core.content_encoding import PACKED, inflater
from loadchaos.core.http_answer import BODILESS

MAX_HEAD_BYTES = 1 << 20
"""Limit of a response head. Real heads have up to 100 kB (cookies, traces)."""
MAX_DECODED_BYTES = 64 << 20
"""Limit of a compressed body once decoded: half a megabyte can become half a gigabyte."""
_MAX_CHUNK_LINE = 4096
_MAX_CACHED_HEADS = 64
_MAX_CACHED_HEAD_BYTES = 4096
_MAX_CACHED_LINES = 1024
_MAX_CACHED_LINE_BYTES = 200
_MAX_LENGTH_DIGITS = 18


class _BrokenError(Exception):
    """The bytes violate the protocol; never leaves this file."""


class _Inflater(Protocol):
    def decompress(self, data: bytes, /, max_length: int) -> bytes: ...
    @property
    def eof(self) -> bool: ...


class _Head(NamedTuple):
    """A parsed response head. `framing` is length (0 without a body), chunked or close; None where there is a `fault`."""

    version: tuple[int, int]
    status: int
    reason: str
    headers: Mapping[str, str]
    framing: str | None = None
    length: int = 0
    compressed: bool = False
    keep_alive: bool = False
    fault: str = ""


_heads: dict[bytes, _Head] = {}
"""Cache of parsed heads, without the request's id: within a second, a server's answers often share one."""
_ID = "x-request-id"
_ID_LINE = re.compile(rb"\r\n%s: ?([!-~]*)(?=\r\n(?![ \t])|$)" % _ID.encode(), re.IGNORECASE)
_FOLD = re.compile(rb"\n[ \t]+")
"""RFC 9112 5.2: a line that begins with a blank continues the header before it."""
_ID_BEGIN = b"\r\n%s: " % _ID.encode()


class ResponseParser:
    """Parser of one response: `feed` bytes in, get body bytes out. Chunking and gzip are undone. Bytes before a fault have
    been returned. Status, headers and version are valid once `has_head`; header names are in lower case, repeated ones
    joined with ", ". Only `request_id` is sure to tell the request's id. `done`: the body ended as promised. `reusable`:
    another request may follow on this connection. `excess`: bytes after the end that no request asked for. `broken`: why
    the bytes are not HTTP/1.
    """

    __slots__ = (
        "_buffer", "_decoded", "_framing", "_given_id", "_inflate", "_keep_alive", "_remaining", "_state", "broken",
        "done", "excess", "has_head", "headers", "interim", "reason", "status", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.version = (1, 1)
        self.headers: Mapping[str, str] = {}
        self.interim: list[int] = []
        self.has_head = False
        self.done = False
        self.broken: str | None = None
        self.excess = b""
        self._given_id: str | None = None  # of a head that came from the cache without it
        self._buffer = b""
        self._state = "head"  # head | length | size | chunk | after_chunk | trailer | until_close
        self._framing = ""
        self._keep_alive = False
        self._remaining = 0
        self._inflate: _Inflater | None = None
        self._decoded = 0

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes that these bytes complete."""
        if self.done or self.broken is not None:
            self.excess += data
            return b""
        if self._state == "size" and (chunk := self.single_chunk(data)) is not None:
            return chunk
        if not self.has_head:
            if not self._buffer and (whole := self._whole(data)) is not None:
                return whole
            self._buffer += data
            try:
                if not self._read_heads() or self.done:
                    return b""
            except _BrokenError as e:
                self.broken = str(e)
                return b""
            data, self._buffer = self._buffer, b""
        body = self._body(data)
        return self._decompress(body) if self._inflate is not None else body

    def single_chunk(self, data: bytes) -> bytes | None:
        """Return the content of `data` if it is exactly one chunk. Returns None for anything else."""
        if not self.between_chunks:
            return None
        end = data.find(b"\r\n", 1, 12)
        digits = data[:end] if end > 0 else b""
        if not digits.isalnum():  # int() would also take signs, blanks and underscores
            return None
        try:
            size = int(digits, 16)
        except ValueError:
            return None
        if not size or len(data) != end + size + 4 or not data.endswith(b"\r\n"):
            return None
        return data[end + 2 : -2]

    @property
    def between_chunks(self) -> bool:
        """True where the next bytes begin a chunk whose content is the body's."""
        return self._state == "size" and not self._buffer and self._inflate is None and self.broken is None

    def _whole(self, data: bytes) -> bytes | None:
        """Return the body of one whole response whose head is cached. Returns None for anything else. Most short answers
        are one packet, and only their id and body are new.
        """
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        begin = data.find(_ID_BEGIN, 0, end)
        if begin < 0:
            head, request_id = _heads.get(data[:end]), None
        else:
            id_end = data.find(b"\r\n", begin + 2, end + 2)
            head = _heads.get(data[:begin] + data[id_end:end])
            request_id = data[begin + len(_ID_BEGIN) : id_end].decode("latin-1")
            if head is None or _ID in head.headers or not request_id.isprintable():
                return None
            request_id = request_id.strip()
        if head is None or head.framing != "length" or head.compressed or head.status < 200:
            return None
        if not head.length or head.length != len(data) - end - 4:
            return None
        self.version, self.status, self.reason, self.headers = head[:4]
        self._given_id = request_id
        self._keep_alive, self._framing, self._state = head.keep_alive, "length", "length"
        self.has_head = self.done = True
        return data[end + 4 :]

    def eof(self) -> None:
        """The peer closed: a clean end for a body that runs until the close."""
        if self.has_head and self._state == "until_close":
            self._finish()

    @property
    def request_id(self) -> str | None:
        found = self._given_id if self._given_id is not None else self.headers.get(_ID, self.headers.get("request-id"))
        return None if found is None else found[:200]

    @property
    def reusable(self) -> bool:
        if not self.done or self.excess or self._framing == "close" or (self.status or 0) < 200:
            return False
        return self._keep_alive

    def _read_heads(self) -> bool:
        """Read heads. Returns True once the final one is complete (100 and 103 are only recorded)."""
        while True:
            # Bare LF is what small servers send; RFC 9112 2.2 lets a recipient take it.
            crlf, lf = self._buffer.find(b"\r\n\r\n"), self._buffer.find(b"\n\n")
            if not b"HTTP/1.".startswith(self._buffer[:7]):
                raise _BrokenError(f"not HTTP/1: {self._buffer[:60]!r}")
            if crlf < 0 and lf < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise _BrokenError(f"the head is longer than {MAX_HEAD_BYTES} bytes")
                return False
            end, size = (crlf, 4) if lf < 0 or 0 <= crlf < lf else (lf, 2)
            head, self._buffer = self._buffer[:end], self._buffer[end + size :]
            parsed = _heads.get(head) or _parse_head_but_id(head)
            self._keep_alive = parsed.keep_alive
            self.version, self.status, self.reason, self.headers = parsed[:4]
            if self.status is not None and 100 <= self.status < 200 and self.status != 101:
                self.interim.append(self.status)
                continue
            self.has_head = True
            self._choose_framing(parsed)
            return True

    def _choose_framing(self, head: _Head) -> None:
        if head.framing is None:
            raise _BrokenError(head.fault)
        self._framing = head.framing
        if head.compressed:
            self._inflate = inflater()
        if head.framing == "chunked":
            self._state = "size"
        elif head.framing == "close":
            self._state = "until_close"
        else:
            self._state, self._remaining = "length", head.length
            if not head.length:
                self._finish()

    def _body(self, data: bytes) -> bytes:
        if self._state == "until_close":
            return data
        if self._state == "length":
            body, rest = data[: self._remaining], data[self._remaining :]
            self._remaining -= len(body)
            if self._remaining == 0:
                self._finish(rest)
            return body
        return self._chunks(data)

    def _chunks(self, data: bytes) -> bytes:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done and self.broken is None:
            if self._state == "chunk":
                part = data[at : at + self._remaining]
                parts.append(part)
                at += len(part)
                self._remaining -= len(part)
                if self._remaining == 0:
                    self._state = "after_chunk"
                    if data[at : at + 2] == b"\r\n":  # nearly always: it saves a line's search
                        self._state, at = "size", at + 2
                continue
            end = data.find(b"\n", at)
            if end < 0:
                if size - at > _MAX_CHUNK_LINE:
                    self.broken = f"a chunk line is longer than {_MAX_CHUNK_LINE} bytes"
                self._buffer = data[at:]
                break
            line, at = data[at:end].rstrip(b"\r"), end + 1
            self._chunk_line(line, data, at)
        return b"".join(parts)

    def _chunk_line(self, line: bytes, data: bytes, at: int) -> None:
        if self._state == "after_chunk":
            if line:
                self.broken = f"a chunk is longer than its declared size: {line[:60]!r}"
            self._state = "size"
        elif self._state == "size":
            digits = line.split(b";", 1)[0].strip()
            # int() would also take signs, blanks and underscores
            if not digits or len(digits) > 16 or digits.strip(b"0123456789abcdefABCDEF"):
                self.broken = f"not a chunk size: {line[:60]!r}"
                return
            self._remaining = int(digits, 16)
            self._state = "chunk" if self._remaining else "trailer"
        elif not line:  # the end of the trailer
            self._finish(data[at:])

    def _finish(self, rest: bytes = b"") -> None:
        self.done = True
        self.excess = rest or self._buffer
        self._buffer = b""

    def _decompress(self, body: bytes) -> bytes:
        inflate = self._inflate
        assert inflate is not None
        try:
            plain = inflate.decompress(body, max_length=MAX_DECODED_BYTES - self._decoded + 1)
        except zlib.error as e:
            self.broken, self.done = f"the compressed body is broken: {e}", False
            return b""
        self._decoded += len(plain)
        if self._decoded > MAX_DECODED_BYTES:
            limit = MAX_DECODED_BYTES >> 20
            self.broken, self.done = f"the compressed body is longer than {limit} MiB once decoded", False
            return b""
        if self.done and not inflate.eof:
            self.broken, self.done = "the compressed body is truncated", False
        return plain


def _parse_head_but_id(raw: bytes) -> _Head:
    """Parse a head; reuse a cached one that differs only in the request's id."""
    line = _ID_LINE.search(raw)
    if line is None:
        return _parse_head(raw)
    rest = raw[: line.start()] + raw[line.end() :]
    head = _heads.get(rest) or _parse_head(rest)
    if _ID in head.headers:  # said twice
        return _parse_head(raw)
    headers = {**head.headers, _ID: line[1].decode("latin-1")}
    return _Head(head[0], head[1], head[2], headers, *head[4:])


def _parse_head(raw: bytes) -> _Head:
    first, *rest = raw.replace(b"\r\n", b"\n").split(b"\n", 1)
    lines = _FOLD.sub(b" ", rest[0]).split(b"\n") if rest else []
    headers: dict[str, str] = {}
    for line in lines:
        # Where an id or a date makes heads differ, their other lines are still the same in every answer.
        name, value = (_header if len(line) <= _MAX_CACHED_LINE_BYTES else _header.__wrapped__)(line)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    head = _add_framing(*_status_line(first), headers)
    if len(raw) <= _MAX_CACHED_HEAD_BYTES:
        if len(_heads) >= _MAX_CACHED_HEADS:
            _heads.clear()
        _heads[raw] = head
    return head


@functools.lru_cache(maxsize=_MAX_CACHED_LINES)
def _status_line(line: bytes) -> tuple[tuple[int, int], int, str]:
    text = line.decode("latin-1")
    parts = text.split(" ", 2)
    version = parts[0].removeprefix("HTTP/1.")
    if len(parts) < 2 or len(parts[1]) != 3 or not parts[1].isascii() or not parts[1].isdigit():
        raise _BrokenError(f"not a status line: {text[:80]!r}")
    if version not in {"0", "1"} or int(parts[1]) < 100:
        raise _BrokenError(f"not a status line: {text[:80]!r}")
    return (1, int(version)), int(parts[1]), parts[2] if len(parts) > 2 else ""


@functools.lru_cache(maxsize=_MAX_CACHED_LINES)
def _header(line: bytes) -> tuple[str, str]:
    text = line.decode("latin-1")
    name, colon, value = text.partition(":")
    if not colon or not name or name != name.strip():
        raise _BrokenError(f"not a header line: {text[:80]!r}")
    return name.lower(), value.strip()


def _add_framing(version: tuple[int, int], status: int, reason: str, headers: Mapping[str, str]) -> _Head:
    keep_alive = version >= (1, 1)
    if "connection" in headers:
        tokens = {t.strip().lower() for t in headers["connection"].split(",")}
        keep_alive = "close" not in tokens and (keep_alive or "keep-alive" in tokens)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    compressed = encoding not in {"", "identity"} and status not in BODILESS
    framing, length, fault = _framing(status, headers)
    if compressed and encoding not in PACKED:
        framing, fault = None, f"content-encoding {encoding[:40]!r} was not requested"
    return _Head(
        version=version,
        status=status,
        reason=reason,
        headers=headers,
        framing=framing,
        length=length,
        compressed=compressed,
        keep_alive=keep_alive,
        fault=fault,
    )


def _framing(status: int, headers: Mapping[str, str]) -> tuple[str | None, int, str]:
    if status in BODILESS:
        return "length", 0, ""
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding:
        return ("chunked" if coding.lower().split(",")[-1].strip() == "chunked" else "close"), 0, ""
    if length is None:
        return "close", 0, ""
    if "," in length:  # repeated: RFC 9112 6.3 takes it where all say the same
        length, *others = {part.strip() for part in length.split(",")}
        if others:
            return None, 0, f"content-length is not a number: {headers['content-length'][:80]!r}"
    if not length.isascii() or not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        return None, 0, f"content-length is not a number: {length[:80]!r}"
    return "length", int(length), ""
