"""Wait for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str = "the condition", limit_s: float = 60.0) -> T:
    """Return the condition's first true value; fail when it does not come."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.01)
    return value
