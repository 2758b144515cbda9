"""Detect unnoticed restarts by start times and counters in the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from loadchaos.analysis.state.limits import BALANCER_NS
from loadchaos.analysis.state.signals import CounterSignals
from loadchaos.core.ledger.rows import MetricsRow
from loadchaos.core.model import State
from loadchaos.core.units import NS_PER_S

_ANOTHER = "another server behind the address answers"
_UP = frozenset({"healthy", "degraded"})
_UNDECIDED = frozenset({"dying", "hung"})  # it may come back as the same process
_FORWARD_S = 0.5  # a start time that moves by less is the same one, rounded


@dataclass(frozen=True)
class RestartNote:
    """A note about a restart, with the start of the new process if any. `balanced`: there is more than one server
    behind the address.
    """

    text: str
    restarted_ns: int | None = None
    balanced: bool = False


class RestartDetector:
    """Folds one replica's `metrics` rows. Two processes that alternate behind one address are no restart."""

    def __init__(self, counters: CounterSignals) -> None:
        self._counters = counters
        self._moved: tuple[int, float] | None = None  # when its start time changed, and what it was
        self._start_before: float | None = None
        self._settle_from_ns: int | None = None
        self._reported_balancer = False
        self._replaced: RestartNote | None = None

    def replaced(self, at_ns: int, report: str) -> None:
        """Fold an orchestrator report that another process runs since then."""
        self._replaced = RestartNote(f"{report}: restarted unnoticed", at_ns)

    def scraped(self, row: MetricsRow) -> bool:
        old = self._counters.start_time()
        worked = self._counters.on_metrics(row)
        new = self._counters.start_time()
        # While a known restart waits for its first figures, a new start time is its own and no second restart.
        if old is not None and new is not None and abs(new - old) > _FORWARD_S and self._settle_from_ns is None:
            self._moved = (int(row["at_ns"]), old)
        return worked

    def remember_process(self) -> None:
        """Remember the process that is gone or out of reach, to compare it later."""
        self._start_before = self._counters.start_time()

    def settle(self, now_ns: int) -> None:
        """Compare the next figures with the process from before."""
        self._settle_from_ns = now_ns

    def settled(self) -> None:
        self._settle_from_ns = None

    def moved_since(self, ns: int) -> tuple[int, str] | None:
        meaning = _ANOTHER if self._reported_balancer else "process start time changed"
        return (self._moved[0], meaning) if self._moved is not None and self._moved[0] > ns else None

    @property
    def open(self) -> bool:
        return self._moved is not None or bool(self._counters.backs)

    def unsettled(self) -> tuple[int, str] | None:
        """Time of the first answer of another process, and what shows it; None where several servers alternate."""
        if self._moved is not None and not self._counters.alternates():
            return self._moved[0], "the start time of its process changed"
        if self._counters.start_time() is None and len(self._counters.backs) == 1:
            return self._counters.backs[0], "its token counter was reset"
        return None

    def poll(self, now_ns: int, state: State, *, healthy_ns: int) -> list[RestartNote]:
        """Notes as of now. `healthy_ns`: when the newest known process became healthy."""
        found = [self._replaced] if self._replaced is not None else []
        if found:
            self._replaced = self._moved = None
            self._counters.backs.clear()
        if self._settle_from_ns is not None and (self._counters.at_ns or 0) > self._settle_from_ns:
            found.append(RestartNote(self._comparison()))
            self._settle_from_ns = self._moved = None
        if self._counters.alternates():
            self._moved = None
            found += self._balancer("start times alternate")
        elif self._moved is not None and now_ns - self._moved[0] > BALANCER_NS and state not in _UNDECIDED:
            moved_ns, self._moved = self._moved[0], None
            if state in _UP and not self._reported_balancer:
                found.append(RestartNote("process start time changed: restarted unnoticed", moved_ns))
        return found + self._counted_back(now_ns, state, healthy_ns=healthy_ns)

    def _counted_back(self, now_ns: int, state: State, *, healthy_ns: int) -> list[RestartNote]:
        """Notes about counters that were reset, without a start time. An unnoticed restart, or, again and again,
        several servers.
        """
        backs = self._counters.backs
        if self._counters.start_time() is not None or state not in (_UP | _UNDECIDED):
            backs.clear()
        while backs and backs[0] - healthy_ns < 3 * NS_PER_S:  # the restart that was seen
            backs.pop(0)
        if not backs or now_ns - backs[0] <= BALANCER_NS or state in _UNDECIDED:
            return []
        first_ns, times = backs[0], len(backs)
        backs.clear()
        if times > 1:
            return self._balancer("counters go back and forth")
        return [RestartNote("counters were reset: restarted unnoticed", first_ns)]

    def _balancer(self, evidence: str) -> list[RestartNote]:
        if self._reported_balancer:
            return []
        self._reported_balancer = True
        return [RestartNote(f"{evidence}: several servers behind one address, name the replicas", balanced=True)]

    def _comparison(self) -> str:
        if self._reported_balancer:
            return _ANOTHER
        start = self._counters.start_time()
        if start is not None and self._start_before is not None:
            moved = start - self._start_before
            if abs(moved) > _FORWARD_S:
                return f"restarted: process start time moved by {moved:.1f} s"
            return "the same process as before"
        if self._counters.went_back_ns is not None and self._counters.went_back_ns >= (self._settle_from_ns or 0):
            return "restarted: counters were reset"
        return "unknown whether it restarted: no start time in its metrics"
