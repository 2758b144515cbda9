"""Hourly checkpoint of a load: outcomes, position, our own memory."""

from __future__ import annotations

import os
from collections import Counter

import psutil

from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import BeginRow, EndRow, MissedRow, RunDetail


class Checkpoint(RowFold):
    """Counter of the workers' rows; `due` returns its figures once an hour."""

    def __init__(self) -> None:
        self._next: float | None = None
        self._number = 0
        self._outcomes: Counter[str] = Counter()
        self._begun = 0
        self._step = -1

    def on_begin(self, row: BeginRow) -> None:
        self._begun += 1
        self._step = max(self._step, int(row.get("step") or 0))

    def on_end(self, row: EndRow) -> None:
        self._outcomes[str(row.get("outcome"))] += 1

    def on_missed(self, row: MissedRow) -> None:
        self._outcomes["missed"] += int(row.get("count") or 0)

    def due(self, now_s: float) -> RunDetail | None:
        """Figures of the load so far, once an hour: `{n, begun, outcomes, step, rss_bytes}`; None in between."""
        if self._next is None:
            self._next = now_s + HOUR_S
        if now_s < self._next:
            return None
        self._next, self._number = self._next + HOUR_S, self._number + 1
        rss = psutil.Process(os.getpid()).memory_info().rss
        return {
            "n": self._number,
            "begun": self._begun,
            "outcomes": dict(self._outcomes),
            "step": self._step,
            "rss_bytes": rss,
        }

    def describe(self, figures: RunDetail) -> str:
        counts = sorted(figures["outcomes"].items(), key=lambda i: -i[1])
        outcomes = ", ".join(f"{n:,} {outcome}" for outcome, n in counts)
        hours = figures["n"] * HOUR_S / 3600
        return f"checkpoint {figures['n']} after {hours:.3g} h: {outcomes or 'no request has ended'}"
