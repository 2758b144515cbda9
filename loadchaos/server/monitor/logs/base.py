"""Define `LogSource`: a place where a log can be followed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from loadchaos.core.ledger.rows import LogLoss

Feed = Callable[[bytes], None]
ReportGap = Callable[[float, str, LogLoss | None], None]
"""Records missing seconds (0 if unknown or none), the reason, and whether lines are lost."""


POLL_S = 0.1


def poll(stop: threading.Event, read: Callable[[bool], None], every_s: float = POLL_S) -> None:
    """Call `read(False)` every `every_s` until `stop` is set, and then `read(True)`, which is the last time."""
    while not stop.is_set():
        read(False)
        stop.wait(every_s)
    read(True)


class LogSource(Protocol):
    """A place where a log can be followed."""

    def head(self, limit_bytes: int) -> bytes:
        """Return the beginning of the log, which has version and flags. Empty if it cannot be read."""
        ...

    def follow(self, feed: Feed, report_gap: ReportGap, stop: threading.Event) -> None:
        """Feed every new byte in order and report gaps, until `stop` is set. Runs in its own thread."""
        ...
