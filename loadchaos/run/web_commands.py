"""Carry out commands of the web UI. Each is a row of kind `command`, so that the verdict can mention it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import cast

from loadchaos.chaos import authorization
from loadchaos.chaos.injector import AttackInjector
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.rows import CommandRow, as_typed
from loadchaos.core.model import Row
from loadchaos.run.server_under_test import TargetSpec


class WebCommands:
    """Commands of the web UI for one run. `start` is the row of the Start button; Stop sets `stop_asked`."""

    def __init__(self, record: EventRecorder, target: TargetSpec, authorized: Sequence[str], start: Row) -> None:
        self._record, self._target, self._authorized, self._start = record, target, authorized, start
        self._tail = Tail(record.folder.commands)
        self._attacks: AttackInjector | None = None
        self._manual = False
        self.stop_asked = False

    def load_begins(self, attacks: AttackInjector) -> None:
        self._attacks = attacks
        self._record.event(
            {
                "row": "offers",
                "at_ns": time.monotonic_ns(),
                "refused": self._refusal("a manual attack"),
                "offers": [dataclasses.asdict(offer) for offer in attacks.offers()],
            }
        )
        if self._start.get("edited"):
            self._users(cast("CommandRow", self._start))

    def poll(self) -> None:
        for row in self._tail.rows():
            typed = as_typed(row)
            if typed["row"] != "command":
                continue
            if typed.get("what") == "stop":
                self.stop_asked = True
                self._answer(typed, ok=True, text="stopped")
            elif self._attacks is None:
                self._answer(typed, ok=False, text="the load has not begun yet")
            elif typed.get("what") == "users":
                self._users(typed)
            elif typed.get("what") == "attack":
                self._fire(self._attacks, typed)

    def _users(self, row: CommandRow) -> None:
        users, planned = int(row.get("users") or 0), int(row.get("planned") or 0)
        if not self._manual:
            self._manual = True
            self._record.control("by_hand", f"{users} users set in the web UI")
        rate = float(row.get("rate") or 0)
        self._answer(row, ok=True, text=f"{users} users at {rate:g} a second (planned: {planned})")

    def _fire(self, attacks: AttackInjector, row: CommandRow) -> None:
        name, params = str(row.get("name")), row.get("params")
        why = self._refusal(f"the manual attack {name}")
        kind = str(row.get("kind"))
        if why is None and (kind, name) not in {(offer.kind, offer.name) for offer in attacks.offers()}:
            why = f"{kind} {name} was not offered"
        try:
            if why is None:
                attacks.fire(kind, name, params if isinstance(params, dict) else {})
        except LoadchaosError as e:
            why = str(e)
        self._answer(row, ok=why is None, text=why or f"{row.get('title') or name} fired")

    def _refusal(self, reason: str) -> str | None:
        """Reason to refuse an attack; None where it may run. A button needs the same --authorize as a profile."""
        try:
            for url in (*self._target.external_urls, *(self._attacks.addresses if self._attacks is not None else ())):
                authorization.check(url, [reason], self._authorized)
        except LoadchaosError as e:
            return str(e)
        return None

    def _answer(self, row: CommandRow, *, ok: bool, text: str) -> None:
        kept: dict[str, object] = {name: row[name] for name in ("what", "name", "kind", "users") if name in row}
        answer = {"row": "command", "at_ns": time.monotonic_ns(), "n": row.get("n", 0), "ok": ok, "text": text, **kept}
        self._record.event(cast("CommandRow", answer))
