"""Share command line and output between the bench clients.

Standard library only: some clients run in another virtual environment than ours. A client does the least that
measuring TTFT and ITL needs: it stamps each piece on arrival and keeps it. Everything else waits until the load is
over, after the window in which its CPU time is measured.
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
    """Job of a client: `users` send `requests` in all.

    A user sends its next request as soon as the last one is over. Users begin `stagger_s` apart.
    """

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
        """Build the head of a request."""
        host, port = self.address
        return (
            f"POST {PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream, application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        ).encode()

    def context(self) -> ssl.SSLContext | None:
        """Build the TLS context; None without TLS."""
        return ssl.create_default_context(cafile=str(self.trust)) if self.trust else None


def parser() -> argparse.ArgumentParser:
    """Build the parser of the options that every client has."""
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
    """Read this process's job from its options."""
    a = parser().parse_args(argv)
    return Job(a.url, a.users, a.requests, a.stream, a.stagger_s, a.body.read_bytes(), a.out, a.trust)


class Marks:
    """Arrival times of the pieces of every stream, and counts of results."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._streams: list[list[tuple[int, bytes]]] = []
        self._begun = 0
        self.ended = 0
        self.failed = 0

    def more(self) -> bool:
        """Count one more request as begun, if there is one."""
        self._begun += 1
        return self._begun <= self._job.requests

    def stream(self) -> list[tuple[int, bytes]]:
        """Add a stream and return the list for its pieces."""
        pieces: list[tuple[int, bytes]] = []
        self._streams.append(pieces)
        return pieces

    def done(self, *, well: bool) -> bool:
        """Count one request as done; True when all are."""
        self.ended += well
        self.failed += not well
        return self.ended + self.failed >= self._job.requests

    def write(self) -> None:
        """Write counts to `out` and times to `out`.marks.

        The times are pairs of (server's ns, our ns); END_OF_STREAM ends each stream.
        """
        marks = array("q")
        for pieces in self._streams:
            ends = list(accumulate(len(piece) for _, piece in pieces))
            for found in _TOKEN.finditer(b"".join(piece for _, piece in pieces)):
                marks.extend((int(found.group(1)), pieces[bisect_left(ends, found.end())][0]))
            marks.extend((END_OF_STREAM, END_OF_STREAM))
        self._job.out.with_suffix(".marks").write_bytes(marks.tobytes())
        self._job.out.write_text(json.dumps({"ended": self.ended, "failed": self.failed}))


class WholeAnswer:
    """Cheapest check for a complete answer, for clients that read bytes."""

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._tail = b""
        self._left: int | None = None

    def feed(self, data: bytes) -> bool:
        """Add bytes; True when the last one is there."""
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
