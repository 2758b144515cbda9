"""The kernel's own log of this machine, where it may be read: Xids of the GPU's driver and kills of the OOM killer.

/dev/kmsg gives one record a read, `priority,sequence,microseconds,flags;text`, and lines of fields behind it that begin
with a blank. Everything else that a kernel says is no business of a run, and is not kept.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from loadchaos.server.monitor.logs.base import Feed, Told

DEVICE = Path("/dev/kmsg")
_POLL_S = 0.1
_RECORD_BYTES = 1 << 13  # the kernel refuses a read that a record does not fit into
_RECORD = re.compile(rb"\d+,\d+,(\d+),[^;]*;(.*)")
_WORDS = re.compile(rb"NVRM: Xid|Out of memory: Killed process|oom-kill:constraint=|Memory cgroup out of memory")


class KernelSource:
    """Follows it from its present end. One that may not be read is told as a gap without length, and that is all."""

    def __init__(self, path: Path = DEVICE) -> None:
        self._path = path
        self._rest = b""
        self._fd: int | None = None
        self._why = ""
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as e:
            self._why = (
                f"{path} cannot be read: {e.strerror}; Xids and the OOM killer's words are not heard (root may read it)"
            )

    def head(self, limit_bytes: int) -> bytes:  # noqa: ARG002 - the shape of a Source
        """Nothing of the server's stands there."""
        return b""

    def follow(self, feed: Feed, told: Told, stop: threading.Event) -> None:
        """See Source."""
        if self._fd is None:
            told(0.0, self._why)
            return
        try:
            while True:
                last = stop.is_set()
                self._read_on(self._fd, feed, told)
                if last:
                    return
                stop.wait(_POLL_S)
        finally:
            os.close(self._fd)
            self._fd = None

    def _read_on(self, fd: int, feed: Feed, told: Told) -> None:
        while True:
            try:
                data = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                told(0.0, "the kernel said more than it keeps: some of its words are lost")
                continue
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._keep(line, feed)

    def _keep(self, line: bytes, feed: Feed) -> None:
        """As dmesg prints it, if it is one of those."""
        record = _RECORD.fullmatch(line)
        if record is not None and _WORDS.search(record[2]):
            feed(b"[%12.6f] %s\n" % (int(record[1]) / 1e6, record[2]))
