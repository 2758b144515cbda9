"""Triggers between attacks: `after: wake_up` fires when that act is done, `during: sleep` when it takes hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from loadchaos.core.errors import OptionError

Trigger = tuple[str, str]
"""("after" or "during", the name of the act)."""


class PendingReplicas:
    """Replicas on which a trigger has fired and the act has not begun."""

    def __init__(self) -> None:
        self._replicas: dict[str, None] = {}
        self._any = asyncio.Event()

    def add(self, replica: str) -> None:
        self._replicas[replica] = None
        self._any.set()

    async def get(self) -> list[str]:
        """Wait for at least one replica, and remove and return all there are."""
        await self._any.wait()
        self._any.clear()
        replicas, self._replicas = list(self._replicas), {}
        return replicas


class Triggers:
    """The waiting attacks by trigger. A trigger that fires again on a replica still pending there is not queued."""

    def __init__(self) -> None:
        self._waiting: dict[Trigger, list[PendingReplicas]] = {}

    def wait_for(self, trigger: Trigger) -> PendingReplicas:
        waiting = PendingReplicas()
        self._waiting.setdefault(trigger, []).append(waiting)
        return waiting

    def fire(self, trigger: Trigger, replica: str) -> None:
        for waiting in self._waiting.get(trigger, ()):
            waiting.add(replica)

    def refuse_unknown(self, names: Iterable[str]) -> None:
        """Raise OptionError where an attack waits for an act that is not among `names`."""
        known = set(names)
        for key, name in self._waiting:
            if name not in known:
                acts = ", ".join(sorted(known)) or "none"
                raise OptionError(f"{key}: {name}: no attack of this profile does that; there are: {acts}")
