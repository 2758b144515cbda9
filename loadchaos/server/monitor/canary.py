"""The canary: two small prompts with known answers, asked several times before the load and on while it goes.

`exact` has one right answer, so that it comes out alike whatever else the server does; `echo` has the model repeat a word
that only this request has, so that another request's word in an answer proves that the server mixes requests up. What
the answers mean is the judge's to say (judge/canary.py).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import httpx

from loadchaos.core.ledger.rows import CanaryRow, Emit
from loadchaos.core.redact import Redactor

Kind = Literal["exact", "echo"]
When = Literal["idle", "load"]

IDLE_TIMES = 3
_LIMIT_S = 120.0
_MOST_TOKENS = 40
_TEXT_CHARS = 400
_EXACT = "Count from 1 to 20. Write the numbers with single blanks between them, and nothing else."
_ECHO = "Repeat this word 3 times, with single blanks between, and nothing else: {word}"


class Canary:
    """Asks one address; `learn` before the load, `start` and `stop` around it. Rows of kind `canary`; never raises."""

    def __init__(
        self,
        url: str,
        model: str,
        emit: Emit,
        redactor: Redactor,
        *,
        every_s: float,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url, self._model, self._every_s = url.rstrip("/") + "/v1/chat/completions", model, every_s
        self._emit, self._redactor = emit, redactor
        self._headers, self._tls = dict(headers or {}), tls
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    async def learn(self) -> None:
        """What it says when nobody else asks."""
        async with self._client() as client:
            for _ in range(IDLE_TIMES):
                await self._ask_both(client, "idle")

    def start(self, held: Callable[[], bool]) -> None:
        """Ask on until `stop`; not while `held` (a server that is down is not asked)."""
        self._task = asyncio.create_task(self._run(held))

    async def stop(self) -> None:
        """Ask no more; what is out is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self, held: Callable[[], bool]) -> None:
        async with self._client() as client:
            while True:
                begin = time.monotonic()
                if not held():
                    await self._ask_both(client, "load")
                await asyncio.sleep(max(begin + self._every_s - time.monotonic(), 0.05))

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self._headers, verify=self._tls or True, trust_env=False, timeout=_LIMIT_S)

    async def _ask_both(self, client: httpx.AsyncClient, when: When) -> None:
        await asyncio.gather(self._ask(client, "exact", when), self._ask(client, "echo", when))

    async def _ask(self, client: httpx.AsyncClient, kind: Kind, when: When) -> None:
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
            answer = await client.post(self._url, json=body)
            status, page = answer.status_code, answer.text
            text, error = _said(answer.json()) if status == 200 else "", "" if status == 200 else page
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as e:
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


def _said(answer: Any) -> str:
    """The text of a chat completion; a model that only reasoned has said that. LookupError or TypeError: it is none."""
    message = answer["choices"][0]["message"]
    found = (message.get(key) for key in ("content", "reasoning_content", "reasoning"))
    return next((text for text in found if isinstance(text, str) and text), "")
