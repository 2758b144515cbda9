"""Growth of counters, and requests beside, while one answer was made."""

from __future__ import annotations

from collections import deque

from loadchaos.core.ledger.rows import MetricsRow
from loadchaos.core.limits import SCRAPE_EVERY_S
from loadchaos.core.units import NS_PER_S, figure

_NAMES = {
    "preemptions_total": "preemptions", "prefix_cache_hits_total": "prefix cache hits (tokens)",
    "spec_accepted_tokens_total": "accepted draft tokens", "spec_draft_tokens_total": "draft tokens",
    "mm_cache_hits_total": "image cache hits", "requests_aborted_total": "aborted requests",
}  # fmt: skip
_GAUGES = {"requests_running": "running", "requests_waiting": "waiting"}
_KEPT = 400
_SLACK_NS = int(2 * SCRAPE_EVERY_S * NS_PER_S)


class CounterMoves:
    """Keeps the newest readings of the counters that matter for wrong answers."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, dict[str, float]]] = deque(maxlen=_KEPT)

    def on_metrics(self, row: MetricsRow) -> None:
        values = row.get("values") or {}
        found = {name: float(values[name]) for name in (*_NAMES, *_GAUGES) if name in values}
        if found:
            self._kept.append((int(row["at_ns"]), found))

    def between(self, begin_ns: int, end_ns: int) -> str:
        inside = self._inside(begin_ns, end_ns)
        moved = []
        for name, label in _NAMES.items():
            seen = [values[name] for values in inside if name in values]
            if seen and seen[-1] > seen[0]:
                moved.append(f"{label} +{figure(seen[-1] - seen[0])}")
        return ", ".join(moved)

    def beside(self, begin_ns: int, end_ns: int) -> str:
        inside = self._inside(begin_ns, end_ns)
        most = {label: max((v[name] for v in inside if name in v), default=None) for name, label in _GAUGES.items()}
        return ", ".join(f"at most {figure(n)} {label}" for label, n in most.items() if n is not None)

    def _inside(self, begin_ns: int, end_ns: int) -> list[dict[str, float]]:
        return [values for at_ns, values in self._kept if begin_ns - _SLACK_NS <= at_ns <= end_ns + _SLACK_NS]
