"""Send canaries: two small prompts with known answers.

They are sent before the load and during it.

`exact` has one right answer, which does not depend on other requests. `echo` makes the model repeat a word that only this
request has, so another request's word in the answer proves that the server mixes requests up. The answers are judged in
analysis/detectors/canary.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal

import httpx

from loadchaos.core import bounded_http
from loadchaos.core.ledger.rows import CanaryRow, Emit
from loadchaos.core.redact import Redactor
from loadchaos.server.monitor.base import ServerAccess

Kind = Literal["exact", "echo"]
When = Literal["idle", "load"]

IDLE_TIMES = 3
_LIMIT_S = 120.0
_MOST_TOKENS = 40
_TEXT_CHARS = 400
_EXACT = "Count from 1 to 20. Write the numbers with single blanks between them, and nothing else."
_ECHO = "Repeat this word 3 times, with single blanks between, and nothing else: {word}"


class Canary:
    """Send canaries to one server.

    `learn` runs before the load, `start` and `stop` around it.

    Writes `canary` rows; never raises.
    """

    def __init__(
        self,
        url: str,
        model: str,
        emit: Emit,
        redactor: Redactor,
        access: ServerAccess,
        *,
        every_s: float,
    ) -> None:
        self._url, self._model, self._every_s = url.rstrip("/") + "/v1/chat/completions", model, every_s
        self._emit, self._redactor = emit, redactor
        self._access = access
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    async def learn(self) -> None:
        """Record its answers on an idle server."""
        async with self._client() as client:
            for _ in range(IDLE_TIMES):
                await self._send_both(client, "idle")

    def start(self, paused: Callable[[], bool]) -> None:
        """Send canaries until `stop`, except while `paused()` is true."""
        self._task = asyncio.create_task(self._run(paused))

    async def stop(self) -> None:
        """Stop; a request in flight is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self, paused: Callable[[], bool]) -> None:
        async with self._client() as client:
            while True:
                begin = time.monotonic()
                if not paused():
                    await self._send_both(client, "load")
                await asyncio.sleep(max(begin + self._every_s - time.monotonic(), 0.05))

    def _client(self) -> httpx.AsyncClient:
        access = self._access
        return httpx.AsyncClient(
            headers=dict(access.headers), verify=access.tls or True, trust_env=False, timeout=_LIMIT_S
        )

    async def _send_both(self, client: httpx.AsyncClient, when: When) -> None:
        await asyncio.gather(self._send(client, "exact", when), self._send(client, "echo", when))

    async def _send(self, client: httpx.AsyncClient, kind: Kind, when: When) -> None:
        number = next(self._numbers)
        word = f"canary-{secrets.randbelow(10**10):010d}" if kind == "echo" else ""
        body = {
            "model": self._model, "messages": [{"role": "user", "content": _ECHO.format(word=word) if word else _EXACT}],
            "max_tokens": _MOST_TOKENS, "temperature": 0, "seed": 1,
        }  # fmt: skip
        ask: CanaryRow = {
            "row": "canary",
            "what": "ask",
            "at_ns": time.monotonic_ns(),
            "n": number,
            "kind": kind,
            "when": when,
            "word": word,
        }
        self._emit(ask)
        status, text, error = 0, "", ""
        try:
            answer = await bounded_http.request(client, "POST", self._url, json=body, limit_s=_LIMIT_S)
            status, page = answer.status, answer.text
            text, error = _answer_text(json.loads(page)) if status == 200 else "", "" if status == 200 else page
        except (
            httpx.HTTPError, TimeoutError, ValueError, LookupError, TypeError, RecursionError,
            bounded_http.IncompleteError, bounded_http.TooLargeError,
        ) as e:  # fmt: skip
            error = f"{type(e).__name__}: {e}"
        finally:
            error = self._redactor.text(error)[:_TEXT_CHARS]
            self._emit(
                {
                    **ask,
                    "what": "answer",
                    "at_ns": time.monotonic_ns(),
                    "status": status,
                    "text": text[:_TEXT_CHARS],
                    "error": error if error or status else "not waited for",
                }
            )


def _answer_text(answer: Any) -> str:
    """Return the text of a chat completion, else its reasoning.

    Raises:
        LookupError: It is no chat completion; TypeError likewise.
    """
    message = answer["choices"][0]["message"]
    found = (message.get(key) for key in ("content", "reasoning_content", "reasoning"))
    return next((text for text in found if isinstance(text, str) and text), "")
