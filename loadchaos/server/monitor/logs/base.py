"""The shape of a source of log lines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

Feed = Callable[[bytes], None]
Told = Callable[[float, str], None]
"""A gap in the log: seconds that are missing (0 where unknown or none), and why."""


class LogSource(Protocol):
    """Somewhere a log lives. `follow` runs in a thread of its own until `stop` is set."""

    def head(self, limit_bytes: int) -> bytes:
        """The beginning of the log (start-up lines tell version and flags); empty where it cannot be had."""
        ...

    def follow(self, feed: Feed, told: Told, stop: threading.Event) -> None:
        """Feed every new byte in order; tell what was missed."""
        ...
