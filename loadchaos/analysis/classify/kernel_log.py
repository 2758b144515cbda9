"""Which words of the kernel's log are about the server: every Xid of a GPU here, and a kill if it was of its processes."""

from __future__ import annotations

import re

from loadchaos.core.model import Row

_KILLED = re.compile(r"Killed process (\d+)|oom-kill:.*\bpid=(\d+)")
_MOST_PIDS = 100_000


class KernelLog:
    """Fold `process` rows, then ask for lines."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def feed(self, row: Row) -> None:
        """A process of the server's."""
        if len(self._pids) < _MOST_PIDS:
            self._pids.add(int(row["pid"]))

    def concerns(self, text: str) -> bool:
        """Whether a line is about the server. Another container's process that ran out of memory is not."""
        killed = _KILLED.search(text)
        return killed is None or int(killed[1] or killed[2]) in self._pids
