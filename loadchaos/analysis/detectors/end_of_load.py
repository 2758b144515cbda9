"""Find requests that were silent when loadchaos ended the load.

A load that is ended by a time (`-t`) or a rule aborts what is in flight. If no token had come on any of these requests for
longer than ever before in the run, nothing shows that the server still worked, and a hang has had no time to be proved.
"""

from __future__ import annotations

from loadchaos.analysis.state.limits import beyond_gaps_ns
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.goodput import expected_of
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow, HeartbeatRow
from loadchaos.core.units import NS_PER_S, counted

SILENT_NS = 5 * NS_PER_S
"""Silence at the end of the load that proves nothing of the server, where it is too long for one more gap of the answers."""


class EndOfLoad(RowFold):
    """Folds heartbeats and ends; `check` is for the end."""

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}  # by worker's file
        self._since_ns = 0  # of the silence: the newest token, or when requests came to an idle server
        self._longest_ns = 0
        self._stopped = self._silent_ns = 0

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        busy = any(self._in_flight.values())
        self._in_flight[str(row.get("file", ""))] = int(row.get("in_flight") or 0)
        if not busy:
            self._since_ns = row["at_ns"]
        elif int(row.get("tokens") or 0) > 0:
            self._progressed(row["at_ns"])

    def _progressed(self, at_ns: int) -> None:
        if self._since_ns:
            self._longest_ns = max(self._longest_ns, at_ns - self._since_ns)
        self._since_ns = max(self._since_ns, at_ns)

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") == "ok":
            self._progressed(row["at_ns"])
        stopped = (row.get("detail") or {}).get("why") == "stopped" and "ok" in expected_of(row)
        if not stopped or not self._since_ns:
            return
        self._stopped += 1
        self._silent_ns = max(self._silent_ns, row["at_ns"] - max(self._since_ns, row.get("sent_ns") or 0))

    def check(self) -> CheckResult | None:
        """Requests that were silent at the end, None without any."""
        if self._silent_ns < beyond_gaps_ns(SILENT_NS, self._longest_ns):
            return None
        silent = f"no token for {self._silent_ns / NS_PER_S:.1f} s on {counted(self._stopped, 'request')} in flight"
        return CheckResult(
            "end_of_load", "the server answered to the end", f"{silent}, until loadchaos ended the load", "unknown"
        )
