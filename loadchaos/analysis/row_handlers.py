"""Base of parts that handle each kind of rows in a method."""

from __future__ import annotations

from collections.abc import Callable

from loadchaos.core.model import Row


class RowHandlers:
    """Handles each kind of row in a method `_on_<kind>(row)`."""

    def feed(self, row: Row) -> None:
        """Fold one row; kinds without a method change nothing."""
        handler = handler_of(self, str(row.get("row")))
        if handler is not None:
            handler(row)


def handler_of(part: object, kind: str) -> Callable[[Row], None] | None:
    """Find the method of a part for a kind of row; None without one."""
    return getattr(part, f"_on_{kind}", None)
