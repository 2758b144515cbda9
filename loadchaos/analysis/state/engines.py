"""State of each engine behind one server (data parallel).

One may hang while others work.

Only the server's counters show a single engine: /health is for all of them, and tokens do not name their engine. So the
limits are wide, and a server of one engine is left to machine.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loadchaos.analysis.state.limits import COUNTERS_FRESH_NS, COUNTERS_STUCK_NS, HUNG_AT_LATEST_NS, beyond_gaps_ns
from loadchaos.analysis.state.signals import PROGRESS
from loadchaos.core.ledger.rows import MetricsRow, StateRow
from loadchaos.core.model import State
from loadchaos.core.units import NS_PER_S


@dataclass
class _Engine:
    state: State = "healthy"
    values: dict[str, float] = field(default_factory=dict)
    moved_ns: int = 0
    longest_gap_ns: int = 0
    running: float = 0.0
    at_ns: int = 0


class EngineStates:
    """Folds `metrics` rows of one replica into `state` rows of its engines. Rows have `engine` set, and come from the
    second engine label on.
    """

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._engines: dict[str, _Engine] = {}

    def on_metrics(self, row: MetricsRow) -> list[StateRow]:
        at_ns, values = int(row["at_ns"]), row.get("values") or {}
        engine = self._engines.setdefault(str(row.get("engine", "0")), _Engine(moved_ns=at_ns))
        before, engine.values, engine.at_ns = engine.values, dict(values), at_ns
        moved = any(n in before and n in values and values[n] != before[n] for n in PROGRESS)
        idle = engine.running == 0
        engine.running = float(values.get("requests_running") or 0)
        if moved or idle:
            if moved and not idle:
                engine.longest_gap_ns = max(engine.longest_gap_ns, at_ns - engine.moved_ns)
            engine.moved_ns = at_ns
        return self._decide(at_ns) if len(self._engines) > 1 else []

    def forget(self) -> None:
        self._engines.clear()

    def _decide(self, now_ns: int) -> list[StateRow]:
        rows = []
        for label, engine in self._engines.items():
            if now_ns - engine.at_ns > COUNTERS_FRESH_NS:
                continue
            quiet_ns = now_ns - engine.moved_ns
            target: State = "healthy"
            if engine.running and quiet_ns >= beyond_gaps_ns(HUNG_AT_LATEST_NS, engine.longest_gap_ns):
                target = "hung"
            elif engine.running and quiet_ns >= COUNTERS_STUCK_NS:
                target = "degraded"
            if target != engine.state:
                rows.append(self._row(label, engine, target, now_ns))
                engine.state = target
        return rows

    def _row(self, label: str, engine: _Engine, target: State, now_ns: int) -> StateRow:
        sign = f"engine {label} is working"
        since_ns = now_ns
        if target != "healthy":
            since_ns = engine.moved_ns
            others = len(self._engines) - 1
            sign = f"engine {label} reports {engine.running:g} running requests, no progress for "
            sign += f"{(now_ns - since_ns) / NS_PER_S:.0f} s, {others} other engine{'s' if others > 1 else ''}"
        return state_row(self._replica, label, (engine.state, target), [sign], now_ns, since_ns)


def state_row(
    replica: str, engine: str | None, change: tuple[State, State], signs: list[str], at_ns: int, since_ns: int | None
) -> StateRow:
    """Make a row about a replica or an engine of it. `change`: (from, to); `since_ns`: of its first sign; None: a note."""
    return {
        "row": "state",
        "at_ns": at_ns,
        "replica": replica,
        "engine": engine,
        "from": change[0],
        "to": change[1],
        "signs": signs,
        "since_ns": since_ns,
        "noticed_after_s": None if since_ns is None else round(max(0, at_ns - since_ns) / NS_PER_S, 3),
    }
