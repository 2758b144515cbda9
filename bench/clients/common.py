"""What the client programs of the benches share: their job from the command line, and what they give back.

Standard library only, because some of them run in another virtual environment than ours. A client of a bench does what
somebody who wants TTFT and ITL has to do at least: stamp each piece on arrival and keep it; all else waits until the
load is over, after the window in which its CPU time is measured.
"""

from __future__ import annotations

import argparse
import json
import re
import ssl
import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from urllib.parse import urlsplit

_TOKEN = re.compile(rb'"content":" (\d{19})"')
END_OF_STREAM = -1
LAST_CHUNK = b"\r\n0\r\n\r\n"
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Job:
    """`users` send `requests` in all, each the next as soon as its last is over, and begin `stagger_s` apart."""

    url: str
    users: int
    requests: int
    stream: bool
    stagger_s: float
    body: bytes
    out: Path
    trust: Path | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 443)

    def head(self) -> bytes:
        """Of a request of our own making."""
        host, port = self.address
        return (
            f"POST {PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream, application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        ).encode()

    def context(self) -> ssl.SSLContext | None:
        """What to trust, None without TLS."""
        return ssl.create_default_context(cafile=str(self.trust)) if self.trust else None


def parser() -> argparse.ArgumentParser:
    """The options every client program takes."""
    it = argparse.ArgumentParser()
    it.add_argument("url")
    it.add_argument("--users", type=int, required=True)
    it.add_argument("--requests", type=int, required=True)
    it.add_argument("--stream", action="store_true")
    it.add_argument("--stagger-s", type=float, default=0.0)
    it.add_argument("--body", type=Path, required=True)
    it.add_argument("--out", type=Path, required=True)
    it.add_argument("--trust", type=Path)
    return it


def job(argv: list[str] | None = None) -> Job:
    """What this process has to do."""
    a = parser().parse_args(argv)
    return Job(a.url, a.users, a.requests, a.stream, a.stagger_s, a.body.read_bytes(), a.out, a.trust)


class Marks:
    """The pieces of every stream with the time each came; counts of what ended well or badly."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._streams: list[list[tuple[int, bytes]]] = []
        self._begun = 0
        self.ended = 0
        self.failed = 0

    def more(self) -> bool:
        """Whether another request is to be sent; counts it as begun."""
        self._begun += 1
        return self._begun <= self._job.requests

    def stream(self) -> list[tuple[int, bytes]]:
        """Where one stream's pieces go."""
        pieces: list[tuple[int, bytes]] = []
        self._streams.append(pieces)
        return pieces

    def done(self, *, well: bool) -> bool:
        """One request is over; whether all are."""
        self.ended += well
        self.failed += not well
        return self.ended + self.failed >= self._job.requests

    def write(self) -> None:
        """`out` gets the counts; `out`.marks pairs of (server's ns, our ns), each stream ended by END_OF_STREAM."""
        marks = array("q")
        for pieces in self._streams:
            ends = list(accumulate(len(piece) for _, piece in pieces))
            for found in _TOKEN.finditer(b"".join(piece for _, piece in pieces)):
                marks.extend((int(found.group(1)), pieces[bisect_left(ends, found.end())][0]))
            marks.extend((END_OF_STREAM, END_OF_STREAM))
        self._job.out.with_suffix(".marks").write_bytes(marks.tobytes())
        self._job.out.write_text(json.dumps({"ended": self.ended, "failed": self.failed}))


class WholeAnswer:
    """Whether an answer is complete, for clients that read bytes: no parser could cost less."""

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._tail = b""
        self._left: int | None = None

    def feed(self, data: bytes) -> bool:
        """True when the last byte is there."""
        if self._stream:
            if len(data) < len(LAST_CHUNK):
                data = self._tail + data
            self._tail = data[-len(LAST_CHUNK) :]
            return data.endswith(LAST_CHUNK)
        if self._left is None:
            data = self._tail + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._tail = data
                return False
            at = data.find(b"content-length: ") + 16
            self._left = int(data[at : data.index(b"\r", at)]) + end + 4
        self._left -= len(data)
        return self._left <= 0


now_ns = time.monotonic_ns
