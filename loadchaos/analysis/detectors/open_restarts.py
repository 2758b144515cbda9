"""Find restarts that the states have not settled yet.

The states wait 10 s before they call a moved start time a restart, because several servers may share an address. A run that
ends before has not proved that its server lived.
"""

from __future__ import annotations

import re

from loadchaos.analysis.state.restarts import RestartDetector
from loadchaos.analysis.state.signals import CounterSignals
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import LaunchRow, MetricsRow, StateRow
from loadchaos.core.units import NS_PER_S

_DOWN = ("dead", "dying", "restarting", "terminated", "unreachable", "starting")
_ABOUT_IT = re.compile(r"restart|start time|counters|process|behind (?:the|one) address")


class OpenRestarts(RowFold):
    """Folds metrics, state and launch rows; `check` is for the end. A process is forgotten once the states, or a launch,
    tell of the next one.
    """

    def __init__(self) -> None:
        self._processes: dict[str, RestartDetector] = {}  # of each replica
        self._down: set[str] = set()
        self._balanced: set[str] = set()

    def on_launch(self, row: LaunchRow) -> None:
        if row.get("what") == "start":
            self._processes.pop(str(row.get("replica")), None)

    def on_state(self, row: StateRow) -> None:
        replica, down = str(row.get("replica")), row.get("to") in _DOWN
        about = down or row.get("from") in _DOWN or any(_ABOUT_IT.search(str(s)) for s in row.get("signs") or ())
        if about and row.get("to") != "terminated":  # we stop a server ourselves, after the load
            self._processes.pop(replica, None)
        (self._down.add if down else self._down.discard)(replica)
        if row.get("balanced"):
            self._balanced.add(replica)

    def on_metrics(self, row: MetricsRow) -> None:
        replica = str(row.get("replica"))
        if replica not in self._down | self._balanced:
            self._processes.setdefault(replica, RestartDetector(CounterSignals())).scraped(row)

    def check(self, now_ns: int) -> CheckResult | None:
        for replica, process in self._processes.items():
            if replica not in self._balanced and (found := process.unsettled()) is not None:
                at_ns, what = found
                ago = (now_ns - at_ns) / NS_PER_S
                text = f"{replica}: {what} {ago:.1f} s before the end, and no restart was confirmed"
                return CheckResult("open_restart", "none at the end", text, "unknown")
        return None
