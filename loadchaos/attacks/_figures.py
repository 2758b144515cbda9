"""The server's newest figures, and waiting until they are what an attack is for: `when: {requests_running: ">= 8"}`."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Callable, Iterable, Mapping

from loadchaos.dialects import Dialect
from loadchaos.errors import OptionError
from loadchaos.model import Row

IN_FLIGHT = "in_flight"
"""Our own requests out now; every other name is one of metrics.jsonl."""
_OPS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
Condition = tuple[str, Callable[[float, float], bool], float]


def conditions(when: Mapping[str, str], dialect: Dialect) -> list[Condition]:
    """(figure, operation, bound) of each; OptionError for a figure the dialect does not have or a text nobody can read."""
    known = {IN_FLIGHT, *(metric.ours for metric in dialect.metrics)}
    found = []
    for name, text in when.items():
        said = _CONDITION.fullmatch(text)
        if said is None:
            raise OptionError(f'when: {name} needs a comparison such as ">= 8" (got {text!r})')
        if name not in known:
            raise OptionError(f"when: {dialect.title} has no figure {name}; it has: {', '.join(sorted(known))}")
        found.append((name, _OPS[said[1]], float(said[2]) / (100 if said[3] else 1)))
    return found


class Figures:
    """Folds `metrics` and `heartbeat` rows. A figure of a replica is the sum over its engines, a ratio their largest."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Mapping[str, float]] = {}
        self._in_flight: dict[str, int] = {}
        self._changed = asyncio.Event()

    def see(self, row: Row) -> None:
        """Fold a row; other kinds are ignored."""
        if row.get("row") == "metrics":
            self._values[str(row.get("replica")), str(row.get("engine"))] = row["values"]
        elif row.get("row") == "heartbeat":
            self._in_flight[str(row.get("file"))] = int(row.get("in_flight") or 0)
        else:
            return
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def value(self, name: str, replica: str) -> float | None:
        """The newest; None where the server has not told it."""
        if name == IN_FLIGHT:
            return float(sum(self._in_flight.values())) if self._in_flight else None
        told = [v[name] for (r, _), v in self._values.items() if r == replica and name in v]
        if not told:
            return None
        return max(told) if name.endswith("_ratio") else sum(told)

    async def until(self, wanted: Iterable[Condition], replica: str) -> None:
        """Return as soon as all hold for this replica; a figure that is not told holds nothing."""
        wanted = list(wanted)
        while not all((v := self.value(n, replica)) is not None and holds(v, bound) for n, holds, bound in wanted):
            await self._changed.wait()
