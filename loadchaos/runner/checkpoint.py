"""Each hour of a load: what has become of its requests so far, and where it is in its plan, as one row of the ledger."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import psutil

from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.model import Row


class Checkpoint:
    """Folds the workers' rows; `due` gives the row's figures once an hour, the first an hour after it was first asked."""

    def __init__(self, every_s: float = HOUR_S) -> None:
        self._every_s = every_s
        self._next: float | None = None
        self._number = 0
        self._outcomes: Counter[str] = Counter()
        self._begun = 0
        self._step = -1

    def feed(self, row: Row) -> None:
        """Count one row of a worker."""
        kind = row.get("row")
        if kind == "begin":
            self._begun += 1
            self._step = max(self._step, int(row.get("step") or 0))
        elif kind == "end":
            self._outcomes[str(row.get("outcome"))] += 1
        elif kind == "missed":
            self._outcomes["missed"] += int(row.get("count") or 0)

    def due(self, now_s: float) -> dict[str, Any] | None:
        """`{n, begun, outcomes, step, rss_bytes}`: of the whole load so far, and our own memory; None in between."""
        if self._next is None:
            self._next = now_s + self._every_s
        if now_s < self._next:
            return None
        self._next, self._number = self._next + self._every_s, self._number + 1
        rss = psutil.Process(os.getpid()).memory_info().rss
        return {
            "n": self._number,
            "begun": self._begun,
            "outcomes": dict(self._outcomes),
            "step": self._step,
            "rss_bytes": rss,
        }

    def words(self, told: Mapping[str, Any]) -> str:
        """For the terminal."""
        outcomes = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(told["outcomes"].items(), key=lambda i: -i[1]))
        hours = told["n"] * self._every_s / 3600
        return f"checkpoint {told['n']}, after {hours:.3g} h: {outcomes or 'no request has ended'}"
