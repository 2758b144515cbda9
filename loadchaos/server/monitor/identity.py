"""Read again and again which version and model an external server says it is: another one may take its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from loadchaos.core import http_client
from loadchaos.core.http_answer import HttpAnswer
from loadchaos.core.ledger.rows import Emit
from loadchaos.core.model import Facts
from loadchaos.core.urls import MODELS_PATH
from loadchaos.server.answer import Asker
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.repeat import repeat

IDENTITY_EVERY_S = 10.0
"""Period of reads of the version and of `/v1/models` of an external server during the load."""
_LIMIT_S = 5.0
_MODEL_KEYS = ("id", "root", "max_model_len", "owned_by")
_MOST_CHARS = 200


class ServerIdentity:
    """Writes an `identity` row for the first reading and for each that differs; never raises."""

    def __init__(self, asker: Asker, facts: Facts, emit: Emit) -> None:
        self._asker, self._facts, self._emit = asker, facts, emit
        self._known: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        page, key = DIALECTS[self._facts.dialect].version_page or ("", "")
        version, models = await asyncio.gather(
            self._get(self._facts.admin_url + page if page else ""),
            self._get(self._facts.base_url + self._facts.api.path(MODELS_PATH)),
        )
        told = {"version": version.fields.get(key)}
        if listed := {str(entry.get("id")): entry for entry in models.models}:
            entry = listed.get(self._facts.model, {"id": min(listed)})
            told["model"] = ", ".join(f"{k} {entry[k]}" for k in _MODEL_KEYS if entry.get(k) is not None)
        now = self._known | {name: str(value)[:_MOST_CHARS] for name, value in told.items() if value is not None}
        if now != self._known:
            self._known = now
            self._emit({"row": "identity", "at_ns": time.monotonic_ns(), "named": now})

    async def _get(self, url: str) -> HttpAnswer:
        try:
            return await http_client.request(self._asker.http, "GET", url, limit_s=_LIMIT_S) if url else HttpAnswer(0)
        except http_client.FAILURES:
            return HttpAnswer(0)

    def start(self, paused: Callable[[], bool]) -> None:
        self._task = asyncio.create_task(repeat(IDENTITY_EVERY_S, self.read, paused))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self.read()
