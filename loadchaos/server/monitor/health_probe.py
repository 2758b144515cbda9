"""Probe a server by TCP connect and GET /health, each on a new connection, seldom while it is down.

Without /health it is /v1/models, of LiteLLM its liveness page, else TCP alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Literal

from loadchaos.core.http_answer import web_page
from loadchaos.core.ledger.rows import Emit, ProbeRow
from loadchaos.core.outcome_rules import SHED_STATUSES
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects.gateways import ABSENT, HEALTH_PATH, LIVENESS_PATH, is_litellm
from loadchaos.server.monitor.http_get import Endpoint, HttpResponse, get, tcp_connect
from loadchaos.server.repeat import until_next_s

TCP_EVERY_S = 0.1
"""Period of connects to a server that is up."""
HEALTH_EVERY_S = 0.25
"""Period of reads of `/health` of such a server."""
CALM_EVERY_S = 0.5
"""Period of both, by turns, for a server that is only watched and was healthy for ten seconds."""
DOWN_EVERY_S = 1.0
"""Period of both for a server that is down, and of `/v1/models` where there is no `/health`."""
LIMIT_S = 2.0
_DOWN_AFTER_S = 2.0
_CALM_AFTER_S = 10.0
_STARTING_S = 30.0  # time for which a server that was never up is probed at full rate
_TCP_ROW_EVERY_NS = 500_000_000  # successful connects are written twice a second
_BODY_CHARS = 300
_MODELS = "/v1/models"
_MODELS_OK = (200, 401, 403, *SHED_STATUSES)
"""Statuses of /v1/models of a server that works."""


class HealthProbe:
    """Probe one replica until cancelled; `run()` is the task. `calm`: seldom while it is healthy."""

    def __init__(self, replica: str, endpoint: Endpoint, emit: Emit, redactor: Redactor, *, calm: bool = False) -> None:
        self._replica, self._endpoint, self._emit, self._redactor = replica, endpoint, emit, redactor
        self._calm = calm
        self._good_since: float | None = None  # first of the good answers since the last failure
        self._litellm_ruled_out = False
        self._page_found = not endpoint.path.endswith(HEALTH_PATH)
        self._base_path = endpoint.path.removesuffix(HEALTH_PATH)
        self._was_up = False
        self._begun = time.monotonic()
        self._bad_since: float | None = None  # the first of the present failures of /health
        self._tcp_row: tuple[str | None, int] = ("", 0)
        self._reachable = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe_tcp())
            tasks.create_task(self._probe_health())

    @property
    def down(self) -> bool:
        if self._bad_since is None:
            return False
        limit_s = _DOWN_AFTER_S if self._was_up or time.monotonic() - self._begun > _STARTING_S else _STARTING_S
        return time.monotonic() - self._bad_since > limit_s

    @property
    def skip_reason(self) -> str | None:
        """Reason to send no other request; "" if there is none. It is None while the server has never been up."""
        if not self._was_up:
            return None
        return "the server is down" if self.down else ""

    def _pause_s(self, begin_s: float, usual_s: float, calm_after_s: float = 0.0, *, seldom: bool) -> float:
        """Time to the next probe after the one of `begin_s`; `calm_after_s`: what is calm comes so long after the others."""
        if seldom:
            return max(begin_s + DOWN_EVERY_S - time.monotonic(), 0.0)
        if self._calm and self._good_since is not None and time.monotonic() - self._good_since > _CALM_AFTER_S:
            return until_next_s(CALM_EVERY_S, calm_after_s)
        return until_next_s(usual_s)

    async def _probe_tcp(self) -> None:
        while True:
            begin_s = time.monotonic()
            took_ns, error = await tcp_connect(self._endpoint, LIMIT_S)
            self._write_tcp(took_ns, error)
            if error is None:
                self._reachable.set()
            else:
                self._reachable.clear()
                self._good_since = None
            await asyncio.sleep(self._pause_s(begin_s, TCP_EVERY_S, CALM_EVERY_S / 2, seldom=self.down))

    async def _probe_health(self) -> None:
        while True:
            if self.down:
                await self._reachable.wait()  # the TCP probe goes on; its first success is followed at once
            begin_s = time.monotonic()
            answer = await self._ask()
            if answer is not None:
                self._health(answer)
            slow = self.down or answer is None or self._endpoint.path.endswith(_MODELS)
            await asyncio.sleep(self._pause_s(begin_s, HEALTH_EVERY_S, seldom=slow))

    async def _ask(self) -> HttpResponse | None:
        """Ask the page that tells the health; None where there is none. One that was there once is not left."""
        if self._page_found:
            return await get(self._endpoint, LIMIT_S)
        base = self._base_path
        if not self._litellm_ruled_out:
            answer = await get(replace(self._endpoint, path=base + LIVENESS_PATH), LIMIT_S)
            if answer.error is not None:
                return answer
            self._litellm_ruled_out = answer.status is not None and answer.status < 500  # else: of a gateway before it
            if is_litellm(answer.status, answer.headers, answer.body.decode("utf-8", "replace")):
                self._page_found, self._endpoint = True, replace(self._endpoint, path=base + LIVENESS_PATH)
                return answer
        for page in (HEALTH_PATH, _MODELS):
            self._endpoint = replace(self._endpoint, path=base + page)
            answer = await get(self._endpoint, LIMIT_S)
            absent = answer.status in ABSENT or _is_web_page(answer)
            if answer.error is not None or not absent:
                self._page_found = answer.error is None and answer.status in _MODELS_OK
                return answer
        self._endpoint = replace(self._endpoint, path=base + _MODELS)
        self._bad_since = None  # it answers HTTP, and tells no more
        return None

    def _health(self, answer: HttpResponse) -> None:
        ok = answer.error is None and answer.status in (_MODELS_OK if self._endpoint.path.endswith(_MODELS) else (200,))
        if ok := ok and not _is_web_page(answer):
            self._bad_since = None
            self._good_since = self._good_since or time.monotonic()
            self._was_up = True
        else:
            self._good_since = None
            self._bad_since = self._bad_since or time.monotonic()
            if answer.error is not None and not answer.error.startswith("timeout"):
                self._reachable.clear()
        body = None if ok else self._redactor.redact(answer.body).decode("utf-8", "replace")[:_BODY_CHARS]
        row = self._row("health", answer.took_ns, answer.error, ok=ok)
        self._emit({**row, "status": answer.status, "body": body or None, "path": self._endpoint.path})

    def _write_tcp(self, took_ns: int, error: str | None) -> None:
        now = time.monotonic_ns()
        last_error, last_ns = self._tcp_row
        if error is None and last_error is None and now - last_ns < _TCP_ROW_EVERY_NS:
            return
        self._tcp_row = (error, now)
        self._emit(self._row("tcp", took_ns, error, ok=error is None))

    def _row(self, what: Literal["tcp", "health"], took_ns: int, error: str | None, *, ok: bool) -> ProbeRow:
        return {
            "row": "probe",
            "at_ns": time.monotonic_ns(),
            "replica": self._replica,
            "what": what,
            "ok": ok,
            "status": None,
            "took_ns": took_ns,
            "error": error,
            "body": None,
        }


def _is_web_page(answer: HttpResponse) -> bool:
    """True for HTML, which a gateway or a network has for every path: it says nothing of the server."""
    return web_page(answer.status, answer.body.decode("utf-8", "replace")) is not None
