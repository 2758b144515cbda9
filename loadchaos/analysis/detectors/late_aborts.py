"""Clients that were to hang up and came too late: their answer was over before the moment the profile chose."""

from __future__ import annotations

from collections import Counter

from loadchaos.core.model import Row


class LateAborts:
    """Folds begin and end rows; `notes` tells, and nothing is judged by it."""

    def __init__(self) -> None:
        self._meant: set[str] = set()  # in flight
        self._planned: Counter[str] = Counter()
        self._late: Counter[str] = Counter()

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        traffic = str(row.get("traffic", ""))
        if row.get("row") == "begin" and row.get("behaviour") == "abort":
            self._meant.add(str(row.get("id")))
            self._planned[traffic] += 1
        elif row.get("row") == "end" and str(row.get("id")) in self._meant:
            self._meant.discard(str(row.get("id")))
            self._late[traffic] += row.get("outcome") == "ok"

    def notes(self) -> list[str]:
        """One sentence a traffic whose clients did not all get to hang up."""
        return [
            f"traffic {traffic}: {late:,} of {self._planned[traffic]:,} hang-ups came too late, the answer was whole: "
            "hang up earlier, or ask for longer answers (output: {exact})"
            for traffic, late in sorted(self._late.items())
            if late
        ]
