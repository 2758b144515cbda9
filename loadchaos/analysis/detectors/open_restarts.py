"""Find restarts that the states have not settled yet.

The states wait 10 s before they call a moved start time a restart, because several servers may share an address. A run that
ends before has not proved that its server lived.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from loadchaos.analysis.mechanisms import Check
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import LaunchRow, MetricsRow, StateRow
from loadchaos.core.units import NS_PER_S

_MOVED_S = 0.5
_SETTLED_NS = 60 * NS_PER_S
_DOWN = ("dead", "dying", "restarting", "terminated", "unreachable", "starting")
_ABOUT_IT = re.compile(r"restart|start time|counters|process|behind (?:the|one) address")


@dataclass
class _Server:
    starts: list[float] = field(default_factory=list)
    tokens: float | None = None
    most_tokens: float = 0.0
    expects_new: bool = False
    changed_ns: int = 0
    balanced: bool = False
    moved: tuple[int, str] | None = None


class OpenRestarts(RowFold):
    """Folds metrics, state and launch rows; `check` is for the end."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, str], _Server] = {}

    def _of(self, replica: object) -> list[_Server]:
        return [server for (name, _), server in self._servers.items() if name == str(replica)]

    def on_launch(self, row: LaunchRow) -> None:
        if row.get("what") == "start":
            for server in self._of(row.get("replica")):
                server.expects_new, server.moved = True, None

    def on_state(self, row: StateRow) -> None:
        down = row.get("to") in _DOWN or row.get("from") in _DOWN
        about = down or any(_ABOUT_IT.search(str(sign)) for sign in row.get("signs") or ())
        for server in self._of(row.get("replica")):
            server.balanced |= bool(row.get("balanced"))
            if about and row.get("to") != "terminated":  # we stop a server ourselves, after the load
                server.moved = None
            server.expects_new |= down
            server.changed_ns = int(row["at_ns"])

    def on_metrics(self, row: MetricsRow) -> None:
        server = self._servers.setdefault((str(row.get("replica")), str(row.get("engine"))), _Server())
        values, at_ns = row.get("values") or {}, int(row["at_ns"])
        if at_ns - server.changed_ns > _SETTLED_NS:
            server.expects_new = False  # the same process came back
        start, tokens = values.get("process_start_time_s"), values.get("generation_tokens_total")
        if start is not None:
            self._started(server, float(start), at_ns)
        elif tokens is not None:
            self._counted(server, float(tokens), at_ns)

    def _started(self, server: _Server, start: float, at_ns: int) -> None:
        known = [s for s in server.starts if abs(s - start) <= _MOVED_S]
        if server.starts and not known:
            self._moved(server, at_ns, "the start time of its process changed")
        elif known and known[0] != server.starts[-1]:
            server.balanced, server.moved = True, None  # an earlier process answers again
        server.starts = [*(s for s in server.starts if abs(s - start) > _MOVED_S), start][-20:]

    def _counted(self, server: _Server, tokens: float, at_ns: int) -> None:
        if server.tokens is not None and tokens < server.tokens:
            self._moved(server, at_ns, "its token counter was reset")
        elif server.moved is not None and tokens >= server.most_tokens > 0:
            server.balanced, server.moved = True, None
        server.tokens, server.most_tokens = tokens, max(server.most_tokens, tokens)

    def _moved(self, server: _Server, at_ns: int, what: str) -> None:
        if not server.expects_new and not server.balanced:
            server.moved = (at_ns, what)
        server.expects_new = False

    def check(self, now_ns: int) -> Check | None:
        for (replica, _), server in self._servers.items():
            if server.moved is not None and not server.balanced:
                at_ns, what = server.moved
                ago = (now_ns - at_ns) / NS_PER_S
                text = f"{replica}: {what} {ago:.1f} s before the end, and no restart was confirmed"
                return Check("open_restart", "none at the end", text, "unknown")
        return None
