"""Commands of the run to the load: pause, few requests, resume, stop (control.jsonl)."""

from __future__ import annotations

import time

from loadchaos.core.ledger.reader import Tail
from loadchaos.load.worker.greenlets import flag

FEW_NS = 500_000_000
"""Interval of the requests of one worker after the command `few`."""


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
        self.paused = self._few = False
        self._paused_since_ns = self._paused_ns = self._next_ns = 0

    def read(self) -> None:
        for row in self._tail.rows():
            if row["row"] == "control":
                self.apply(str(row.get("what")), row.get("grace_s"))

    def apply(self, what: str, grace_s: float | None = None) -> None:
        """Apply one command. An unknown one is ignored, as a newer run may send it."""
        now = time.monotonic_ns()
        if what in ("pause", "few"):
            if not (self.paused or self._few):
                self._paused_since_ns = now
            self.paused, self._few, self._next_ns = what == "pause", what == "few", now
            waking, self._running = self._running, flag()
            waking.set()  # who waited under the order before waits under this one
        elif what == "resume" and (self.paused or self._few):
            self.paused = self._few = False
            self._paused_ns += now - self._paused_since_ns
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
        held = self.paused or self._few
        return self._paused_ns + (time.monotonic_ns() - self._paused_since_ns if held else 0)

    def may_send(self) -> bool:
        """True when a request may be sent now. After `few`, true once in `FEW_NS`."""
        if not self._few:
            return not self.paused
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + FEW_NS
        return True

    def wait(self) -> bool:
        """Wait until a request may be sent; returns False when the load is to end."""
        while not self.stopping.is_set() and not self.may_send():
            self._running.wait(None if self.paused else max(0.0, (self._next_ns - time.monotonic_ns()) / 1e9))
        return not self.stopping.is_set()
