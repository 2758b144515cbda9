"""Commands of the run to the load: pause, resume, stop (control.jsonl)."""

from __future__ import annotations

import time

from loadchaos.core.ledger.reader import Tail
from loadchaos.load.worker.greenlets import flag


class Control:
    """State of the load as the newest commands set it. `stopping` ends the load. `paused`: no request may be sent now.
    `compact_rows`: disk space is low, so successful requests get no rows of their own. `manual_users`: the users are
    edited in the web UI, so their number is no longer the plan's.
    """

    def __init__(self, tail: Tail) -> None:
        self.stopping = flag()
        self.end_reason = "done"
        self.grace_s: float | None = None
        self.manual_users = self.compact_rows = False
        self._tail = tail
        self._running = flag()
        self._running.set()
        self.paused = False
        self._paused_since_ns = self._paused_ns = 0

    def read(self) -> None:
        for row in self._tail.rows():
            if row["row"] == "control":
                self.apply(str(row.get("what")), row.get("grace_s"))

    def apply(self, what: str, grace_s: float | None = None) -> None:
        """Apply one command. An unknown one is ignored, as a newer run may send it."""
        now = time.monotonic_ns()
        if what == "pause" and not self.paused:
            self.paused, self._paused_since_ns = True, now
            self._running.clear()
        elif what == "resume" and self.paused:
            self.paused, self._paused_ns = False, self._paused_ns + now - self._paused_since_ns
            self._running.set()
        elif what == "by_hand":
            self.manual_users = True
        elif what in ("compact", "full"):
            self.compact_rows = what == "compact"
        elif what == "stop" and not self.stopping.is_set():
            self.end_reason, self.grace_s = "stopped", grace_s
            self.stopping.set()
            self._running.set()  # users that wait must see the end

    def paused_ns(self) -> int:
        return self._paused_ns + (time.monotonic_ns() - self._paused_since_ns if self.paused else 0)

    def wait(self) -> bool:
        """Wait until requests may be sent; returns False when the load is to end."""
        if self.paused:
            self._running.wait()
        return not self.stopping.is_set()
