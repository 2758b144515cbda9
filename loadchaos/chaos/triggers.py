"""What one act waits for another for: `after: wake_up` begins when that was done, `during: sleep` when it takes hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from loadchaos.core.errors import OptionError

Place = tuple[str, str]
"""("after" or "during", the name of the act)."""


class PendingReplicas:
    """The replicas on which it has happened and that nobody has taken yet, each once."""

    def __init__(self) -> None:
        self._replicas: dict[str, None] = {}
        self._any = asyncio.Event()

    def come(self, replica: str) -> None:
        """It has happened there."""
        self._replicas[replica] = None
        self._any.set()

    async def get(self) -> list[str]:
        """All there are now, as soon as there is one."""
        await self._any.wait()
        self._any.clear()
        taken, self._replicas = list(self._replicas), {}
        return taken


class Triggers:
    """Who waits for what. What comes again while it is still waited upon on that replica is not queued: no piling up."""

    def __init__(self) -> None:
        self._waiting: dict[Place, list[PendingReplicas]] = {}

    def wait_for(self, place: Place) -> PendingReplicas:
        """The replicas on which it happens, from now on."""
        waiting = PendingReplicas()
        self._waiting.setdefault(place, []).append(waiting)
        return waiting

    def fire(self, place: Place, replica: str) -> None:
        """It has happened on this replica."""
        for waiting in self._waiting.get(place, ()):
            waiting.come(replica)

    def refuse_unheard(self, names: Iterable[str]) -> None:
        """OptionError where somebody waits for an act that no attack of this profile does."""
        known = set(names)
        for key, name in self._waiting:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                raise OptionError(f"{key}: {name}: no attack of this profile does that; there are: {there}")
