"""Follow the kernel log for GPU Xid errors and OOM kills. /dev/kmsg gives `priority,sequence,microseconds,flags;text`
per read, then field lines that begin with a blank.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from loadchaos.server.monitor.logs.base import Feed, ReportGap, poll

DEVICE = Path("/dev/kmsg")
_POLL_S = 0.5  # it names a cause, and tells no death
_RECORD_BYTES = 1 << 13  # the kernel refuses a read that a record does not fit into
_RECORD = re.compile(rb"\d+,\d+,(\d+),[^;]*;(.*)")
_TEXTS = re.compile(rb"NVRM: Xid|Out of memory: Killed process|oom-kill:constraint=|Memory cgroup out of memory")


class KernelSource:
    """Follow the kernel log from its present end. One that may not be read gives one gap without length."""

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
                f"{path} cannot be read: {e.strerror}; Xid errors and OOM kills are not recorded (root may read it)"
            )

    def head(self, limit_bytes: int) -> bytes:  # noqa: ARG002 - as LogSource has it
        return b""

    def follow(self, feed: Feed, report_gap: ReportGap, stop: threading.Event) -> None:
        if self._fd is None:
            report_gap(0.0, self._why, None)
            return
        fd = self._fd
        try:
            poll(stop, lambda _: self._read_on(fd, feed, report_gap), _POLL_S)
        finally:
            os.close(fd)
            self._fd = None

    def _read_on(self, fd: int, feed: Feed, report_gap: ReportGap) -> None:
        while True:
            try:
                data = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                report_gap(0.0, "the kernel log overflowed; records are lost", "certain")
                continue
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._keep(line, feed)

    def _keep(self, line: bytes, feed: Feed) -> None:
        record = _RECORD.fullmatch(line)
        if record is not None and _TEXTS.search(record[2]):
            feed(b"[%12.6f] %s\n" % (int(record[1]) / 1e6, record[2]))
