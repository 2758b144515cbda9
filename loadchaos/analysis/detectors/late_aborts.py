"""Count planned client aborts that came too late, after the whole answer."""

from __future__ import annotations

from collections import Counter

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.core.ledger.rows import as_typed
from loadchaos.core.model import Row


class LateAborts(Detector):
    """Folds begin and end rows into one note per traffic.

    Nothing is judged by it.
    """

    def __init__(self) -> None:
        self._in_flight: set[str] = set()
        self._planned: Counter[str] = Counter()
        self._late: Counter[str] = Counter()

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        typed = as_typed(row)
        if typed["row"] == "begin" and typed.get("behaviour") == "abort":
            self._in_flight.add(str(typed.get("id")))
            self._planned[str(typed.get("traffic", ""))] += 1
        elif typed["row"] == "end" and (id_ := str(typed.get("id"))) in self._in_flight:
            self._in_flight.discard(id_)
            self._late[str(typed.get("traffic", ""))] += typed.get("outcome") == "ok"

    def finish(self) -> list[Finding]:
        """One note per traffic with late aborts."""
        return [
            f"traffic {traffic}: {late:,} of {self._planned[traffic]:,} aborts came too late, after the whole answer. "
            "Abort earlier, or request longer answers (output: {exact})."
            for traffic, late in sorted(self._late.items())
            if late
        ]
