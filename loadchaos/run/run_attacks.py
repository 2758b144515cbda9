"""Attacks of one run: started with the load, undone before the end."""

from __future__ import annotations

import asyncio

from loadchaos.chaos.injector import AttackInjector
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import AttackRow
from loadchaos.core.model import Row


class RunAttacks(RowFold):
    """Holder of the attack injector; does nothing until `prepared` has one. `begun`: an attack has begun."""

    def __init__(self) -> None:
        self._injector: AttackInjector | None = None
        self._undo: asyncio.Task[list[str]] | None = None
        self.begun = False

    def prepared(self, injector: AttackInjector) -> None:
        self._injector = injector

    @property
    def injector(self) -> AttackInjector:
        assert self._injector is not None
        return self._injector

    def fold(self, row: Row) -> None:
        super().fold(row)
        if self._injector is not None:
            self._injector.figures.fold(row)

    def on_attack(self, row: AttackRow) -> None:
        self.begun |= row["what"] == "begin"

    async def start(self, begin_s: float | None = None) -> None:
        """Start the attacks' timetables. Times count from `begin_s`, else from now."""
        await self.injector.start(begin_s)

    def pause(self) -> None:
        if self._injector is not None:
            self._injector.pause()

    def resume(self) -> None:
        if self._injector is not None:
            self._injector.resume()

    def begin_undo(self) -> None:
        """Start undoing beside the drain of the load. A paused server would never finish the drain."""
        if self._undo is None and self._injector is not None:
            self._undo = asyncio.create_task(self._injector.stop())

    async def undo(self) -> list[str]:
        self.begin_undo()
        return [] if self._undo is None else await self._undo
