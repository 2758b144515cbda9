"""Protocol of a watch that ends a run's load early."""

from __future__ import annotations

from typing import Protocol

from loadchaos.core.model import Row


class LoadWatch(Protocol):
    """Folds the rows of a run, and says when its load can end."""

    def feed(self, row: Row) -> None:
        """Fold one row of the run or of its workers."""

    def reason(self) -> str | None:
        """Reason to end the load now; None to continue."""
