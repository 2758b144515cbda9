"""Follow a log file through rotation and truncation. It starts at the present end."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

from loadchaos.server.monitor.logs.base import POLL_S, Feed, ReportGap, poll

_CHUNK_BYTES = 1 << 16
"""Small, because redacting a chunk holds the interpreter lock, and probes run in the same process."""
_KNOWN_BYTES = 64
"""The last bytes read are kept: a file that was truncated and has grown again has other bytes there."""


def why_unreadable(path: Path) -> str:
    """Tell why a log file cannot be followed; empty: it can."""
    if path.is_dir():
        return "it is a folder; give the path of the log file"
    if not path.exists():
        return "no such file"
    if not os.access(path, os.R_OK):
        return "permission denied; give this user read access (chmod, a group) or run as another user"
    try:
        os.close(_open(path))
    except OSError as e:
        return f"{e.strerror}; a file of lines was expected: for a pipe or a device give cmd:'cat {path}'"
    return ""


def _open(path: Path) -> int:
    """Open a regular file. Raises OSError for anything else: a pipe, a device, or memory under /proc."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        os.close(fd)
        raise
    return fd


class FileSource:
    """Follow one path. A file that does not exist yet is waited for and read from its beginning."""

    def __init__(self, path: Path, every_s: float = POLL_S) -> None:
        self._path, self._every_s = path, every_s
        self._fd: int | None = None
        self._position = 0
        self._newest = b""
        self._inode: tuple[int, int] | None = None
        # From now on, not from when the thread starts: lines in between must not be lost.
        self._begin_at_end = self._open()

    def head(self, limit_bytes: int) -> bytes:
        try:
            with open(_open(self._path), "rb") as f:
                return os.pread(f.fileno(), limit_bytes, 0)
        except OSError:
            return b""

    def follow(self, feed: Feed, report_gap: ReportGap, stop: threading.Event) -> None:
        if not self._begin_at_end:
            report_gap(0.0, f"{self._path} does not exist yet", None)

        def read(last: bool) -> None:
            self._check(feed, report_gap)
            self._read_on(feed, None if last else stop)

        try:
            poll(stop, read, self._every_s)
        finally:
            self._close()

    def _open(self) -> bool:
        try:
            self._fd = _open(self._path)
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
        while self._fd is not None:
            data = os.read(self._fd, _CHUNK_BYTES)
            if not data:
                return
            self._position += len(data)
            self._newest = (self._newest + data)[-_KNOWN_BYTES:]
            feed(data)
            if stop is not None and stop.is_set():
                return

    def _check(self, feed: Feed, report_gap: ReportGap) -> None:
        try:
            status = self._path.stat()
        except OSError:
            return  # rotated away just now: the old file stays open until the new one exists
        inode, at = (status.st_dev, status.st_ino), self._position - len(self._newest)
        if self._fd is None or inode != self._inode:
            renewed = self._fd is not None
            self._read_on(feed, None)  # what the writer still wrote to the old file
            self._close()
            if self._open():
                self._begin_again()
                report_gap(0.0, "the log was rotated" if renewed else "the log exists now", None)
        elif (cut := status.st_size < self._position) or os.pread(self._fd, len(self._newest), at) != self._newest:
            now = f"to {status.st_size} bytes" if cut else "and has grown again"
            why = f"the log was truncated {'from' if cut else 'at'} {self._position} bytes {now}; lines may be lost"
            report_gap(0.0, why, "possible")
            self._begin_again()

    def _begin_again(self) -> None:
        """Go to the first byte of data. A writer that kept its position in a truncated file leaves a hole before it."""
        assert self._fd is not None
        try:
            self._position = os.lseek(self._fd, 0, getattr(os, "SEEK_DATA", os.SEEK_SET))
        except OSError:  # nothing but a hole, or a system that does not know holes
            self._position = os.lseek(self._fd, 0, os.SEEK_SET)
        self._newest = b""
