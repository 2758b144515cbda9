"""Scrape a server's /metrics every SCRAPE_EVERY_S. Keep raw pages at the start and every 10 minutes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loadchaos.core.limits import SCRAPE_EVERY_S
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects.base import MetricName
from loadchaos.server.monitor.base import MonitorOutput
from loadchaos.server.monitor.exposition import PageParser
from loadchaos.server.monitor.gaps import CoverageGap
from loadchaos.server.monitor.http_get import Endpoint, get
from loadchaos.server.repeat import until_next_s

LIMIT_S = 5.0
_SLOW_S = 1.0
_PAGE_EVERY_S = 600.0


class RawPageWriter:
    """Number and write raw pages under `folder`. Shared by all replicas, so that names are unique."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self._folder, self._redactor = folder, redactor
        # The monitor starts again once the dialect is known: the pages of its first start stay.
        taken = len(list((folder / "watch").glob("metrics-*.txt")))
        self._numbers: Iterator[int] = itertools.count(taken + 1)

    async def write(self, page: bytes) -> str:
        """Write a page without blocking the loop; its path below the run folder. Raises OSError."""
        path = self._folder / "watch" / f"metrics-{next(self._numbers)}.txt"
        await asyncio.to_thread(self._write, path, page)
        return str(path.relative_to(self._folder))

    def _write(self, path: Path, page: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._redactor.redact(page))


class Scraper:
    """Scrape one replica until cancelled; `run()` is the task."""

    def __init__(
        self,
        replica: str,
        endpoint: Endpoint,
        names: Sequence[MetricName],
        output: MonitorOutput,
        pages: RawPageWriter,
        skip_reason: Callable[[], str | None] = lambda: "",
    ) -> None:
        """`skip_reason`: reason not to scrape now; "" if there is none, None before the server was ever up."""
        self._replica, self._endpoint = replica, endpoint
        self._emit, self._pages, self._skip_reason = output.emit_metrics, pages, skip_reason
        self._parser = PageParser(names)
        self._gap = CoverageGap(output.emit_event, replica, "scrape")
        self._kept_at: float | None = None

    async def run(self) -> None:
        while True:
            await self._scrape()
            await asyncio.sleep(until_next_s(SCRAPE_EVERY_S))

    async def _scrape(self) -> None:
        if reason := self._skip_reason():
            self._gap.open(reason)
        if reason != "":
            return
        answer = await get(self._endpoint, LIMIT_S)
        if answer.error is not None or answer.status != 200:
            self._gap.open(answer.error or f"status {answer.status}")
            return
        self._gap.close()
        at_ns = time.monotonic_ns()
        if answer.took_ns > _SLOW_S * 1e9:
            self._gap.report(answer.took_ns / 1e9, "the metrics page came late")
        # A number that was cut would look like a counter reset.
        page = answer.body if answer.framed else answer.body[: answer.body.rfind(b"\n") + 1]
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
        if bad := self._parser.bad_lines:
            self._gap.report(0.0, f"{bad} line{'s' * (bad != 1)} of the metrics page could not be parsed")
        if unread := self._parser.unread:
            self._gap.report(0.0, f"{unread} series of the metrics page were not read: it has too many")
        if self._kept_at is None or time.monotonic() - self._kept_at > _PAGE_EVERY_S:
            await self._save_page(page, "start" if self._kept_at is None else "periodic")

    async def _save_page(self, page: bytes, why: str) -> None:
        self._kept_at = time.monotonic()
        try:
            name = await self._pages.write(page)
        except OSError as e:
            self._gap.report(0.0, f"a metrics page could not be written: {e.strerror}")
            return
        at_ns = time.monotonic_ns()
        self._emit({"row": "page", "at_ns": at_ns, "replica": self._replica, "why": why, "file": name})
