"""Two small prompts with known answers, before the load and during it. `echo` makes the model repeat a word that only
this request has: another request's word in an answer proves that the server mixes requests up.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from typing import Literal

from loadchaos.core.ledger.rows import CanaryRow, Emit
from loadchaos.core.redact import Redactor
from loadchaos.server.answer import ANSWER_LIMIT_S, NOT_WAITED_FOR, Asker, chat_body
from loadchaos.server.repeat import repeat

Kind = Literal["exact", "echo"]
When = Literal["idle", "load"]

IDLE_TIMES = 3
_MOST_TOKENS = 40
_TEXT_CHARS = 400
_EXACT = "Count from 1 to 20. Write the numbers with single blanks between them, and nothing else."
_ECHO = "Repeat this word 3 times, with single blanks between, and nothing else: {word}"


class Canary:
    """Sends canaries to the chat URL of a server and writes `canary` rows; never raises."""

    def __init__(self, asker: Asker, url: str, model: str, emit: Emit, redactor: Redactor, *, every_s: float) -> None:
        self._asker, self._url, self._model, self._every_s = asker, url, model, every_s
        self._emit, self._redactor = emit, redactor
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    async def learn(self) -> None:
        for _ in range(IDLE_TIMES):
            await self._send_both("idle")

    def start(self, paused: Callable[[], bool]) -> None:
        self._task = asyncio.create_task(repeat(self._every_s, lambda: self._send_both("load"), paused))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _send_both(self, when: When) -> None:
        await asyncio.gather(self._send("exact", when), self._send("echo", when))

    async def _send(self, kind: Kind, when: When) -> None:
        word = f"canary-{secrets.randbelow(10**10):010d}" if kind == "echo" else ""
        body = chat_body(
            self._model, _ECHO.format(word=word) if word else _EXACT, _MOST_TOKENS, self._asker.changes, seed=1
        )
        ask: CanaryRow = {
            "row": "canary", "what": "ask", "at_ns": time.monotonic_ns(), "n": next(self._numbers), "kind": kind,
            "when": when, "word": word,
        }  # fmt: skip
        self._emit(ask)
        answer = NOT_WAITED_FOR
        try:
            answer = await self._asker.ask(self._url, body, limit_s=ANSWER_LIMIT_S)
        finally:
            self._emit(
                {
                    **ask,
                    "what": "answer",
                    "at_ns": time.monotonic_ns(),
                    "status": answer.status,
                    "text": answer.text[:_TEXT_CHARS],
                    "error": self._redactor.text(answer.error)[:_TEXT_CHARS],
                }
            )
