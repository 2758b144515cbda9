"""Ask the server one small question after the load of a short run: a server may be healthy and answer no request any
more, when none is left in flight to show it. The state machine reads the rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from loadchaos.analysis.state.limits import HUNG_AT_LATEST_NS
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.rows import LastQuestionRow
from loadchaos.core.model import Facts
from loadchaos.core.redact import Redactor
from loadchaos.core.urls import CHAT_PATH
from loadchaos.run.server_under_test import ServerUnderTest
from loadchaos.server.answer import ERROR_CHARS, SMALL_QUESTION, chat_body

_LIMIT_S = HUNG_AT_LATEST_NS / 1e9 + 5.0


class LastQuestion:
    """One chat completion of one token, once the load has ended."""

    def __init__(self, server: ServerUnderTest, record: EventRecorder, redactor: Redactor) -> None:
        self._server, self._record, self._redactor = server, record, redactor
        self._facts: Facts | None = None

    def learn(self, facts: Facts) -> None:
        self._facts = facts

    async def ask(self, tick: Callable[[], Awaitable[None]], stopped: Callable[[], bool]) -> None:
        """Ask, and wait for the answer, until the server is known to hang or `stopped`."""
        if self._facts is None or self._server.down or stopped():
            return
        asking = asyncio.create_task(self._send(self._facts))
        while not asking.done() and not (self._server.down or self._server.state == "hung" or stopped()):
            await tick()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def _send(self, facts: Facts) -> None:
        row: LastQuestionRow = {"row": "last_question", "what": "ask", "at_ns": time.monotonic_ns()}
        self._record.event(row)
        url = self._server.url.rstrip("/") + facts.api.path(CHAT_PATH)
        body = chat_body(facts.model, SMALL_QUESTION, 1, facts.field_changes)
        answer = await self._server.asker.ask(url, body, limit_s=_LIMIT_S)
        if answer.outcome != "timeout":
            shown = self._redactor.text(answer.error)[:ERROR_CHARS]
            now_ns = time.monotonic_ns()
            self._record.event({**row, "what": "answer", "at_ns": now_ns, "status": answer.status, "error": shown})
