"""Interface of what is asked beside the load."""

from __future__ import annotations

import json
from typing import Protocol

_SHOWN = 160


class ProbePart(Protocol):
    """One part of `correctness`.

    Attributes:
        every_s: seconds between two calls of `act`.
    """

    every_s: float

    async def learn(self) -> None:
        """Ask the idle server."""

    async def act(self) -> None:
        """Ask beside the load."""

    async def check(self) -> None:
        """Ask again after the load."""


def idle_error(error: str) -> str:
    """Say that the idle server gave an error, by its message alone."""
    try:
        body = json.loads(error)
        message = str((body.get("error") or body).get("message") or error)
    except (ValueError, AttributeError):
        message = error
    return f"the idle server gave an error: {message[:_SHOWN]}"
