"""Scan new log bytes for shutdown, failure and engine-death texts. Only they tell an asked end from a death, and a dead
engine before /health does: they must not wait for the classifier.
"""

from __future__ import annotations

import os
import re
import time
from functools import cache
from pathlib import Path

from loadchaos.core.ledger.rows import AlarmEvent, Emit
from loadchaos.core.whole_lines import LineJoiner
from loadchaos.server.dialects import any_server

_MOST_BYTES = 1 << 18
_REPEAT_S = 5.0
_LINE_CHARS = 160
_FAILING = r" ERROR |CRITICAL|FATAL|Traceback \(most recent call last\)|died unexpectedly"


@cache
def _texts() -> re.Pattern[bytes]:
    dead = "|".join(p.pattern for p in any_server(lambda d: (*d.engine_dead, *d.log_dead)))
    shutdown = "|".join(p.pattern for p in any_server(lambda d: d.log_shutdown))
    return re.compile(f"(?P<failing>{_FAILING})|(?P<dead>{dead})|(?P<ending>{shutdown})".encode())


_QUOTING = re.compile(
    r"\b(?:prompt|text|messages|input_text|response)[=:] ?['\"\[]|\b(?:Receive(?: OpenAI)?|Finish): obj=|\] in=['\"]"
    r"|\b(?:Received request|Generated response|Request) \S+(?: \(\w+ \w+\))?(?: details| JSON body)?: |\bresponse_body="
)
"""A line that logs a request: what it says is the client's text."""


class LogAlarms:
    """Scan one log of the run folder. Writes `heard` rows; of repeated texts one every 5 s. Never waits or raises."""

    def __init__(self, path: Path, replica: str, emit: Emit) -> None:
        self._path, self._replica, self._emit = path, replica, emit
        self._fd: int | None = None
        self._offset = 0
        self._written: dict[AlarmEvent, float] = {}
        self._joiner, self._lines = LineJoiner(), 0

    def poll(self) -> None:
        data = self._whole_lines(self._new_bytes())
        for found in _texts().finditer(data):
            what: AlarmEvent = "failing" if found["failing"] else "dead" if found["dead"] else "ending"
            if time.monotonic() - self._written.get(what, -_REPEAT_S) < _REPEAT_S:
                continue
            begin, end = data.rfind(b"\n", 0, found.start()) + 1, data.find(b"\n", found.end())
            line = data[begin : end if end >= 0 else None].decode("utf-8", "replace").strip()
            if _QUOTING.search(line):
                continue
            self._written[what] = time.monotonic()
            self._row(what, line[:_LINE_CHARS])

    def _whole_lines(self, data: bytes) -> bytes:
        """Join what a log collector cut. A held line is scanned as far as it has come."""
        now_ns = time.monotonic_ns()
        self._joiner.expire(now_ns)  # it has been scanned
        texts: list[str] = []
        for line in data.decode("utf-8", "replace").split("\n")[:-1]:
            self._lines += 1
            texts += [whole.text for whole in self._joiner.feed(line, self._lines, now_ns=now_ns)]
        if data:
            texts += self._joiner.held_texts()
        return "".join(f"{text}\n" for text in texts).encode()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _new_bytes(self) -> bytes:
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._offset = os.fstat(self._fd).st_size  # what stands there already is of an earlier start
                self._row("listening", "")
                return b""
            size = os.fstat(self._fd).st_size
            if size <= self._offset:
                return b""
            begin = max(self._offset, size - _MOST_BYTES)
            data = os.pread(self._fd, size - begin, begin)
        except OSError:
            return b""
        # The last line may be half written: it is read again with its end.
        complete = data.rfind(b"\n") + 1
        self._offset = begin + (complete or (len(data) if len(data) >= _MOST_BYTES else 0))
        return data[:complete]

    def _row(self, what: AlarmEvent, text: str) -> None:
        now_ns = time.monotonic_ns()
        self._emit({"row": "heard", "at_ns": now_ns, "replica": self._replica, "what": what, "text": text})
