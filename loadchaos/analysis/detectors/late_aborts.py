"""Count planned client aborts that came too late, after the whole answer."""

from __future__ import annotations

from collections import Counter

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.core.ledger.rows import BeginRow, EndRow


class LateAborts(Detector):
    """Folds begin and end rows into one note per traffic. Nothing is judged by it."""

    def __init__(self) -> None:
        super().__init__()
        self._in_flight: set[str] = set()
        self._planned: Counter[str] = Counter()
        self._late: Counter[str] = Counter()

    def on_begin(self, row: BeginRow) -> None:
        if row.get("behaviour") == "abort":
            self._in_flight.add(str(row.get("id")))
            self._planned[str(row.get("traffic", ""))] += 1

    def on_end(self, row: EndRow) -> None:
        if (id_ := str(row.get("id"))) in self._in_flight:
            self._in_flight.discard(id_)
            self._late[str(row.get("traffic", ""))] += row.get("outcome") == "ok"

    def finish(self) -> list[Finding]:
        return [
            f"traffic {traffic}: {late:,} of {self._planned[traffic]:,} aborts came too late, after the whole answer. "
            "Abort earlier, or request longer answers (output: {exact})."
            for traffic, late in sorted(self._late.items())
            if late
        ]
