"""Select kernel log lines of the server: Xids, OOM kills of its processes."""

from __future__ import annotations

import re

from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import ProcessRow

_KILLED = re.compile(r"Killed process (\d{1,9})|oom-kill:.*\bpid=(\d{1,9})")
_MOST_PIDS = 100_000


class KernelLog(RowFold):
    """Folds `process` rows; `concerns` then filters lines."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def on_process(self, row: ProcessRow) -> None:
        if len(self._pids) < _MOST_PIDS:
            self._pids.add(int(row["pid"]))

    def concerns(self, text: str) -> bool:
        """True for a line about the server. An OOM kill of another container's process is not."""
        killed = _KILLED.search(text)
        return killed is None or int(killed[1] or killed[2]) in self._pids
