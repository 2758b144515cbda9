"""Conditions on the server's figures that an attack waits for: `when: {requests_running: ">= 8"}`."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import HeartbeatRow, MetricsRow
from loadchaos.core.units import COMPARISONS, NS_PER_S
from loadchaos.server.dialects import Dialect

WORKER_FIGURES = ("in_flight", "images_in_prefill", "aborts_per_s")
"""Figures in our workers' heartbeats, every 250 ms: requests in flight; those with images and no byte of the answer yet;
requests aborted by the client or the server within the last second. All other names are those of metrics.jsonl."""
_ABORT_WINDOW_NS = NS_PER_S
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
Condition = tuple[str, Callable[[float, float], bool], float]


def parse_conditions(when: Mapping[str, str], dialect: Dialect) -> list[Condition]:
    """Parse a `when` mapping into (figure, operation, bound). Raises OptionError for a figure that the dialect does not
    have, or a text that is no comparison.
    """
    known = {*WORKER_FIGURES, *(metric.ours for metric in dialect.metrics)}
    found = []
    for name, text in when.items():
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise OptionError(f'when: {name} needs a comparison such as ">= 8" (got {text!r})')
        if name not in known:
            raise OptionError(f"when: {dialect.title} has no figure {name}; it has: {', '.join(sorted(known))}")
        found.append((name, COMPARISONS[match[1]], float(match[2]) / (100 if match[3] else 1)))
    return found


class ServerFigures(RowFold):
    """Newest figures of `metrics` and `heartbeat` rows. A replica's figure is the sum over its
    engines, or the largest where it is a ratio.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Mapping[str, float]] = {}
        self._beats: dict[str, deque[HeartbeatRow]] = {}
        self._changed = asyncio.Event()

    def on_metrics(self, row: MetricsRow) -> None:
        self._values[str(row.get("replica")), str(row.get("engine"))] = row["values"]
        self._wake()

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        beats = self._beats.setdefault(str(row.get("file")), deque())
        beats.append(row)
        while len(beats) > 1 and beats[1]["at_ns"] <= row["at_ns"] - _ABORT_WINDOW_NS:
            beats.popleft()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def value(self, name: str, replica: str) -> float | None:
        """Return the newest value; None where the server has not reported it."""
        if name in WORKER_FIGURES:
            return float(sum(_worker_figure(name, beats) for beats in self._beats.values())) if self._beats else None
        values = [v[name] for (r, _), v in self._values.items() if r == replica and name in v]
        if not values:
            return None
        return max(values) if name.endswith("_ratio") else sum(values)

    async def until(self, conditions: Iterable[Condition], replica: str) -> None:
        """Wait until all conditions hold for this replica. A figure without a value meets none."""
        waiting = list(conditions)
        while not all((v := self.value(n, replica)) is not None and holds(v, bound) for n, holds, bound in waiting):
            await self._changed.wait()


def _worker_figure(name: str, beats: deque[HeartbeatRow]) -> int:
    if name == "aborts_per_s":
        return int(beats[-1].get("aborted") or 0) - int(beats[0].get("aborted") or 0)
    newest: Mapping[str, Any] = beats[-1]
    return int(newest.get(name) or 0)
