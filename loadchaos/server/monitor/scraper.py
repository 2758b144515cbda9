"""Reads a server's /metrics once a second into our names, and keeps whole pages: at the start, every 10 min, on demand."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from loadchaos.core.ledger.rows import Emit
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import MetricName
from loadchaos.server.monitor.exposition import PageParser
from loadchaos.server.monitor.gaps import CoverageGap
from loadchaos.server.monitor.http_get import Endpoint, get

EVERY_S = 1.0
LIMIT_S = 5.0
_SLOW_S = 1.0
_PAGE_EVERY_S = 600.0


class RawPageWriter:
    """Numbers and writes raw pages under `folder`; one for all replicas, so that no two get one name."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self._folder, self._redactor = folder, redactor
        # A run may watch anew, once it knows the server's dialect: the pages of the first watch stay.
        taken = len(list((folder / "watch").glob("metrics-*.txt")))
        self._numbers: Iterator[int] = itertools.count(taken + 1)

    async def keep(self, page: bytes) -> str:
        """Write it, without blocking the loop; its path below the run folder. OSError when it cannot be written."""
        path = self._folder / "watch" / f"metrics-{next(self._numbers)}.txt"
        await asyncio.to_thread(self._write, path, page)
        return str(path.relative_to(self._folder))

    def _write(self, path: Path, page: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._redactor.redact(page))


class Scrape:
    """Scrapes one replica until cancelled; `run()` is the task."""

    def __init__(
        self,
        replica: str,
        where: Endpoint,
        names: Sequence[MetricName],
        emit_metrics: Emit,
        emit_event: Emit,
        pages: RawPageWriter,
        headers: Mapping[str, str],
        absent: Callable[[], str | None] = lambda: "",
    ) -> None:
        """`absent` says why no page can be had now ("": it can); None where the server never was up, so none is missed."""
        self._replica, self._where, self._headers = replica, where, dict(headers)
        self._emit, self._pages, self._absent = emit_metrics, pages, absent
        self._parser = PageParser(names)
        self._gap = CoverageGap(emit_event, replica, "scrape")
        self._last_page: bytes = b""
        self._kept_at: float | None = None

    async def run(self) -> None:
        """Scrape for ever; nothing is asked of a server that is down."""
        while True:
            begin = time.monotonic()
            absent = self._absent()
            if absent:
                self._gap.blind(absent)
            elif absent is not None:
                await self._scrape()
            await asyncio.sleep(max(begin + EVERY_S - time.monotonic(), 0.05))

    async def _scrape(self) -> None:
        answer = await get(self._where, self._headers, LIMIT_S)
        if answer.error is not None or answer.status != 200:
            self._gap.blind(answer.error or f"status {answer.status}")
            return
        self._gap.seeing()
        at_ns = time.monotonic_ns()
        if answer.took_ns > _SLOW_S * 1e9:
            self._gap.once(answer.took_ns / 1e9, "the page came late")
        # A number that was cut would look like a counter that went back.
        page = answer.body if answer.whole else answer.body[: answer.body.rfind(b"\n") + 1]
        for engine, values in self._parser.parse(page).items():
            self._emit(
                {
                    "row": "metrics",
                    "at_ns": at_ns,
                    "replica": self._replica,
                    "engine": engine,
                    "took_ns": answer.took_ns,
                    "values": values,
                }
            )
        if self._parser.bad_lines:
            self._gap.once(0.0, f"{self._parser.bad_lines} lines of the page could not be read")
        self._last_page = page
        if self._kept_at is None or time.monotonic() - self._kept_at > _PAGE_EVERY_S:
            await self.keep("start" if self._kept_at is None else "periodic")

    async def keep(self, why: str) -> None:
        """Keep the newest page there is; nothing where there was none."""
        if not self._last_page:
            return
        self._kept_at = time.monotonic()
        try:
            name = await self._pages.keep(self._last_page)
        except OSError as e:
            self._gap.once(0.0, f"a page could not be kept: {e.strerror}")
            return
        at_ns = time.monotonic_ns()
        self._emit({"row": "page", "at_ns": at_ns, "replica": self._replica, "why": why, "file": name})
