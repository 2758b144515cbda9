"""The server's newest figures, and waiting until they are what an attack is for: `when: {requests_running: ">= 8"}`."""

from __future__ import annotations

import asyncio
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from loadchaos.core.errors import OptionError
from loadchaos.core.model import Row
from loadchaos.server.dialects import Dialect

OURS = ("in_flight", "images_in_prefill", "aborts_per_s")
"""What our own workers tell every 250 ms: requests out now; those with images of which no byte of the answer has come;
requests that ended aborted, by the client or the server, within the last second. Other names are of metrics.jsonl."""
_WAVE_NS = 1_000_000_000
_OPS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
Condition = tuple[str, Callable[[float, float], bool], float]


def conditions(when: Mapping[str, str], dialect: Dialect) -> list[Condition]:
    """(figure, operation, bound) of each; OptionError for a figure the dialect does not have or a text nobody can read."""
    known = {*OURS, *(metric.ours for metric in dialect.metrics)}
    found = []
    for name, text in when.items():
        said = _CONDITION.fullmatch(text)
        if said is None:
            raise OptionError(f'when: {name} needs a comparison such as ">= 8" (got {text!r})')
        if name not in known:
            raise OptionError(f"when: {dialect.title} has no figure {name}; it has: {', '.join(sorted(known))}")
        found.append((name, _OPS[said[1]], float(said[2]) / (100 if said[3] else 1)))
    return found


class ServerFigures:
    """Folds `metrics` and `heartbeat` rows. A figure of a replica is the sum over its engines, a ratio their largest."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Mapping[str, float]] = {}
        self._beats: dict[str, deque[Row]] = {}
        self._changed = asyncio.Event()

    def see(self, row: Row) -> None:
        """Fold a row; other kinds are ignored."""
        if row.get("row") == "metrics":
            self._values[str(row.get("replica")), str(row.get("engine"))] = row["values"]
        elif row.get("row") == "heartbeat":
            beats = self._beats.setdefault(str(row.get("file")), deque())
            beats.append(row)
            while len(beats) > 1 and beats[1]["at_ns"] <= row["at_ns"] - _WAVE_NS:
                beats.popleft()
        else:
            return
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def value(self, name: str, replica: str) -> float | None:
        """The newest; None where the server has not told it."""
        if name in OURS:
            return float(sum(_ours(name, beats) for beats in self._beats.values())) if self._beats else None
        told = [v[name] for (r, _), v in self._values.items() if r == replica and name in v]
        if not told:
            return None
        return max(told) if name.endswith("_ratio") else sum(told)

    async def until(self, wanted: Iterable[Condition], replica: str) -> None:
        """Return as soon as all hold for this replica; a figure that is not told holds nothing."""
        wanted = list(wanted)
        while not all((v := self.value(n, replica)) is not None and holds(v, bound) for n, holds, bound in wanted):
            await self._changed.wait()


def _ours(name: str, beats: deque[Row]) -> int:
    """One worker's, out of its heartbeats of the last second."""
    if name == "aborts_per_s":
        return int(beats[-1].get("aborted") or 0) - int(beats[0].get("aborted") or 0)
    return int(beats[-1].get(name) or 0)
