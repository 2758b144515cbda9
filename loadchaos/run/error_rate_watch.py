"""Watch the share of failed requests, to end the load by `abort_when`."""

from __future__ import annotations

from collections import deque

from loadchaos.core.goodput import expected_of, is_judged
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow, HeartbeatRow
from loadchaos.profile.abort_rule import AbortRule

FEWEST_REQUESTS = 10
"""Requests in the time of `abort_when` from which on their share counts."""


class ErrorRateWatch(RowFold):
    """Folds rows of requests-*.jsonl. A request failed if its outcome was not among those that its traffic expects."""

    def __init__(self, rule: AbortRule) -> None:
        self._rule = rule
        self._window: deque[tuple[int, bool]] = deque()  # (ended at, failed)
        self._failed = 0
        self._first_ns: int | None = None
        self._newest_ns = 0

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self._newest_ns = max(self._newest_ns, row["at_ns"])

    def on_end(self, row: EndRow) -> None:
        if not is_judged(row):
            return
        at_ns, failed = row["at_ns"], row["outcome"] not in expected_of(row)
        self._first_ns = self._first_ns or at_ns
        self._newest_ns = max(self._newest_ns, at_ns)
        self._window.append((at_ns, failed))
        self._failed += failed

    def reason(self) -> str | None:
        for_ns = int(self._rule.for_s * 1e9)
        since_ns = self._newest_ns - for_ns
        while self._window and self._window[0][0] <= since_ns:
            self._failed -= self._window.popleft()[1]
        ended = len(self._window)
        if self._first_ns is None or self._first_ns > since_ns or ended < FEWEST_REQUESTS:
            return None
        if not self._rule.is_met(self._failed, ended):
            return None
        return f"{self._rule.text} ({self._failed:,} of {ended:,} requests failed in the last {self._rule.for_s:g} s)"
