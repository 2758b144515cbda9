"""Hears the words of a log that cannot wait for the follower: a server was told to end, it failed, its engine is gone.

A server that ends after a SIGTERM and one that dies look alike from outside, and only the log tells them apart; one that
outlives its engine (LMDeploy's) says so in its log long before /health does. Nothing is classified here: three patterns
over what is new, and of a burst only its end.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import cast

from loadchaos.core.ledger.rows import AlarmEvent, Emit
from loadchaos.server.dialects import any_server

_MOST_BYTES = 1 << 18
_AGAIN_S = 5.0
_LINE_CHARS = 160
_FAILING = r" ERROR |CRITICAL|FATAL|Traceback \(most recent call last\)|died unexpectedly"
_DEAD = "|".join(p.pattern for p in any_server("engine_dead", "log_dead"))
_SHUTDOWN = "|".join(p.pattern for p in any_server("log_shutdown"))
_WORDS = re.compile(f"(?P<failing>{_FAILING})|(?P<dead>{_DEAD})|(?P<ending>{_SHUTDOWN})".encode())


class LogAlarms:
    """One log of one replica, as the run folder keeps it. Rows of kind `heard`; `look` never waits and never raises."""

    def __init__(self, path: Path, replica: str, emit: Emit) -> None:
        self._path, self._replica, self._emit = path, replica, emit
        self._fd: int | None = None
        self._offset = 0
        self._told: dict[str, float] = {}

    def look(self) -> None:
        """Tell what is new since the last look."""
        data = self._new()
        for found in _WORDS.finditer(data):
            what = cast("AlarmEvent", found.lastgroup)
            if time.monotonic() - self._told.get(what, -_AGAIN_S) < _AGAIN_S:
                continue
            self._told[what] = time.monotonic()
            begin, end = data.rfind(b"\n", 0, found.start()) + 1, data.find(b"\n", found.end())
            line = data[begin : end if end >= 0 else None].decode("utf-8", "replace").strip()
            self._row(what, line[:_LINE_CHARS])

    def close(self) -> None:
        """Look no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _new(self) -> bytes:
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._offset = os.fstat(self._fd).st_size  # what was said before belongs to another life
                self._row("listening", "")
                return b""
            size = os.fstat(self._fd).st_size
            if size <= self._offset:
                return b""
            begin = max(self._offset, size - _MOST_BYTES)
            data = os.pread(self._fd, size - begin, begin)
        except OSError:
            return b""
        # A word may be cut in two by what is written just now: its line is read again with its end.
        whole = data.rfind(b"\n") + 1
        self._offset = begin + (whole or (len(data) if len(data) >= _MOST_BYTES else 0))
        return data[:whole]

    def _row(self, what: AlarmEvent, text: str) -> None:
        self._emit(
            {
                "row": "heard",
                "at_ns": time.monotonic_ns(),
                "replica": self._replica,
                "what": what,
                "text": text,
            }
        )
