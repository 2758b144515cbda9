"""What the run tells the load through control.jsonl: pause, go on, be brief, stop."""

from __future__ import annotations

import time

from loadchaos.core.ledger.reader import Tail
from loadchaos.load.worker.greenlets import flag


class Control:
    """The newest word of the run. `running` is set while requests may be sent; `stopping` ends the load.

    `brief`: disk is low, so that what goes well gets no rows of its own.
    `by_hand`: somebody edits the users in the web UI, so that their number is no longer the plan's.
    """

    def __init__(self, tail: Tail) -> None:
        self.stopping = flag()
        self.why = "done"
        self.grace_s: float | None = None
        self.by_hand = self.brief = False
        self._tail = tail
        self._running = flag()
        self._running.set()
        self._paused_since_ns: int | None = None
        self._paused_ns = 0

    def read(self) -> None:
        """Obey the rows that came since the last time."""
        for row in self._tail.rows():
            if row.get("row") == "control":
                self.obey(str(row.get("what")), row.get("grace_s"))

    def obey(self, what: str, grace_s: float | None = None) -> None:
        """One order; an unknown one is for a newer load than this."""
        now = time.monotonic_ns()
        if what == "pause" and self._paused_since_ns is None:
            self._paused_since_ns = now
            self._running.clear()
        elif what == "resume" and self._paused_since_ns is not None:
            self._paused_ns += now - self._paused_since_ns
            self._paused_since_ns = None
            self._running.set()
        elif what == "by_hand":
            self.by_hand = True
        elif what in ("brief", "whole"):
            self.brief = what == "brief"
        elif what == "stop" and not self.stopping.is_set():
            self.why, self.grace_s = "stopped", grace_s
            self.stopping.set()
            self._running.set()  # whoever waits for the server must see that it is over

    @property
    def paused(self) -> bool:
        """Whether nothing may be sent now."""
        return self._paused_since_ns is not None

    def paused_ns(self) -> int:
        """How long it was paused in all."""
        since = self._paused_since_ns
        return self._paused_ns + (time.monotonic_ns() - since if since is not None else 0)

    def wait(self) -> bool:
        """Wait until requests may be sent; False when the load is to end."""
        if self._paused_since_ns is not None:
            self._running.wait()
        return not self.stopping.is_set()
