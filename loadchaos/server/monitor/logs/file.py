"""Follows a log file on this machine from its present end, through rotation and truncation."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from loadchaos.server.monitor.logs.base import Feed, Told

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 16
"""Small, because redacting a chunk holds the interpreter: probes run beside us in the same process."""
_KNOWN_BYTES = 64
"""So much of what was read last is kept: a file that was truncated and has grown again has something else there."""


class FileSource:
    """One path. A file that is not there yet is waited for, and read from its beginning when it comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._position = 0
        self._newest = b""
        self._inode: tuple[int, int] | None = None
        # From the moment we were made, not from when the thread gets its turn: lines between are not lost.
        self._begin_at_end = self._open()

    def head(self, limit_bytes: int) -> bytes:
        """The first bytes of the file as it is now."""
        try:
            with self._path.open("rb") as f:
                return f.read(limit_bytes)
        except OSError:
            return b""

    def follow(self, feed: Feed, told: Told, stop: threading.Event) -> None:
        """See Source."""
        if not self._begin_at_end:
            told(0.0, f"{self._path} is not there yet")
        try:
            while True:
                last = stop.is_set()
                self._check(feed, told)
                self._read_on(feed, stop if not last else None)
                if last:
                    return
                stop.wait(_POLL_S)
        finally:
            self._close()

    def _open(self) -> bool:
        """Open it at its end; False when it is not there."""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        status = os.fstat(self._fd)
        self._position = os.lseek(self._fd, 0, os.SEEK_END)
        self._newest = os.pread(self._fd, _KNOWN_BYTES, max(0, self._position - _KNOWN_BYTES))
        self._inode = (status.st_dev, status.st_ino)
        return True

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read_on(self, feed: Feed, stop: threading.Event | None) -> None:
        """Read to the present end. Told to stop in the middle of it we end after the present chunk."""
        while self._fd is not None:
            data = os.read(self._fd, _CHUNK_BYTES)
            if not data:
                return
            self._position += len(data)
            self._newest = (self._newest + data)[-_KNOWN_BYTES:]
            feed(data)
            if stop is not None and stop.is_set():
                return

    def _check(self, feed: Feed, told: Told) -> None:
        """See whether the path still is the file we read, and whether that still is as long as we read."""
        try:
            status = self._path.stat()
        except OSError:
            return  # rotated away this moment: the next one comes, until then we hold the old one
        inode = (status.st_dev, status.st_ino)
        if self._fd is None or inode != self._inode:
            renewed = self._fd is not None
            self._read_on(feed, None)  # what was written to the old one before the writer changed over
            self._close()
            if self._open():
                self._begin_again()
                told(0.0, "rotated: another file has its name" if renewed else "it is there now")
        elif status.st_size < self._position:
            told(0.0, f"truncated from {self._position} to {status.st_size} bytes; what was in between is lost")
            self._begin_again()
        elif os.pread(self._fd, len(self._newest), self._position - len(self._newest)) != self._newest:
            told(0.0, f"truncated at {self._position} bytes, and it has grown again; what was in between is lost")
            self._begin_again()

    def _begin_again(self) -> None:
        """Read from the file's first byte; a writer that kept its place in a truncated file has left a hole before it."""
        assert self._fd is not None
        try:
            self._position = os.lseek(self._fd, 0, getattr(os, "SEEK_DATA", os.SEEK_SET))
        except OSError:  # nothing but a hole, or a system that does not know holes
            self._position = os.lseek(self._fd, 0, os.SEEK_SET)
        self._newest = b""
