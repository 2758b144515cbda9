"""Probe a server by TCP connect and GET /health, each on a new connection.

While the server is up: a connect every 100 ms and /health every 250 ms. After two seconds of failing probes: at most one
of each per second, to spare a server that is coming back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from loadchaos.core.ledger.rows import Emit
from loadchaos.core.redact import Redactor
from loadchaos.server.monitor.http_get import Endpoint, get, tcp_connect

TCP_EVERY_S = 0.1
HEALTH_EVERY_S = 0.25
DOWN_EVERY_S = 1.0
LIMIT_S = 2.0
_DOWN_AFTER_S = 2.0
_STARTING_S = 30.0  # a server that was never up is probed at full pace for so long
_TCP_ROW_EVERY_NS = 500_000_000  # successful connects are written twice a second
_BODY_CHARS = 300


class HealthProbe:
    """Probe one replica until cancelled; `run()` is the task.

    `healthy` is set while the last /health was good.
    """

    def __init__(
        self,
        replica: str,
        endpoint: Endpoint,
        emit: Emit,
        redactor: Redactor,
        health_ok: Sequence[int] = (200,),
    ) -> None:
        self._replica, self._endpoint, self._emit = replica, endpoint, emit
        self._redactor, self._health_ok = redactor, health_ok
        self.healthy = asyncio.Event()
        self._was_up = False
        self._begun = time.monotonic()
        self._bad_since: float | None = None  # the first of the present failures of /health
        self._tcp_row: tuple[str | None, int] = ("", 0)
        self._reachable = asyncio.Event()

    async def run(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe_tcp())
            tasks.create_task(self._probe_health())

    @property
    def down(self) -> bool:
        """True after failures that have lasted longer than the limit."""
        if self._bad_since is None:
            return False
        limit_s = _DOWN_AFTER_S if self._was_up or time.monotonic() - self._begun > _STARTING_S else _STARTING_S
        return time.monotonic() - self._bad_since > limit_s

    @property
    def skip_reason(self) -> str | None:
        """Reason to send no other request; "" if there is none.

        It is None while the server has never been up.
        """
        if not self._was_up:
            return None
        return "the server is down" if self.down else ""

    async def _probe_tcp(self) -> None:
        while True:
            begin = time.monotonic()
            took_ns, error = await tcp_connect(self._endpoint, LIMIT_S)
            self._write_tcp(took_ns, error)
            if error is None:
                self._reachable.set()
            else:
                self._reachable.clear()
            await _until(begin + (DOWN_EVERY_S if self.down else TCP_EVERY_S))

    async def _probe_health(self) -> None:
        while True:
            if self.down:
                await self._reachable.wait()  # the TCP probe goes on; its first success is followed at once
            begin = time.monotonic()
            await self._health()
            await _until(begin + (DOWN_EVERY_S if self.down else HEALTH_EVERY_S))

    async def _health(self) -> None:
        answer = await get(self._endpoint, LIMIT_S)
        ok = answer.error is None and answer.status in self._health_ok
        if ok:
            self._bad_since = None
            self._was_up = True
            self.healthy.set()
        else:
            self._bad_since = self._bad_since or time.monotonic()
            self.healthy.clear()
            if answer.error is not None and not answer.error.startswith("timeout"):
                self._reachable.clear()
        body = None if ok else self._redactor.redact(answer.body).decode("utf-8", "replace")[:_BODY_CHARS]
        self._emit(
            {
                "row": "probe",
                "at_ns": time.monotonic_ns(),
                "replica": self._replica,
                "what": "health",
                "ok": ok,
                "status": answer.status,
                "took_ns": answer.took_ns,
                "error": answer.error,
                "body": body or None,
            }
        )

    def _write_tcp(self, took_ns: int, error: str | None) -> None:
        now = time.monotonic_ns()
        last_error, last_ns = self._tcp_row
        if error is None and last_error is None and now - last_ns < _TCP_ROW_EVERY_NS:
            return
        self._tcp_row = (error, now)
        self._emit(
            {
                "row": "probe",
                "at_ns": now,
                "replica": self._replica,
                "what": "tcp",
                "ok": error is None,
                "status": None,
                "took_ns": took_ns,
                "error": error,
                "body": None,
            }
        )


async def _until(moment: float) -> None:
    """Sleep until `moment` (time.monotonic); if it has passed, yield once."""
    await asyncio.sleep(max(moment - time.monotonic(), 0.0))
