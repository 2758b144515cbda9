"""Follow one log in a thread and write it to the run folder. The loop only gets its gaps."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.rows import Emit, LogLoss
from loadchaos.core.redact import Redactor
from loadchaos.server.indexed_log import IndexedLog
from loadchaos.server.monitor.gaps import CoverageGap
from loadchaos.server.monitor.logs import open_source
from loadchaos.server.monitor.logs.base import POLL_S

HEAD_BYTES = 1 << 16
_STOP_S = 5.0
_REPEAT_S = 10.0
_MOST_LINES = 1_000_000
_MOST_LINES_PER_S = 10_000
"""Lines of a log that are kept at once, and then each second: one without end would take minutes to judge."""


@dataclass(frozen=True)
class FollowedLog:
    """A log to follow: `spec` as `--server-log` names it, `replica` ("" for a machine's), `label` of its file, `source`
    of its gaps. A file is read every `every_s`.
    """

    spec: str
    replica: str
    label: str
    source: str = "log"
    every_s: float = POLL_S


class LogFollower:
    """Follow one log. `start` and `stop` are called on the loop; everything else happens in the thread."""

    def __init__(self, log: FollowedLog, folder: Path, emit: Emit, redactor: Redactor) -> None:
        self._redactor, self._lines = redactor, redactor.fork()
        self._gap = CoverageGap(emit, log.replica, log.source)
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._source = open_source(log.spec, log.every_s)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{log.label}.log"
        self._file = IndexedLog(self.path, "run", redactor.text(log.spec))
        self._thread = threading.Thread(target=self._run, name=f"log-{log.label}", daemon=True)
        self._lines_left, self._counted_s = float(_MOST_LINES), time.monotonic()
        self._lost_bytes = 0
        self._lost_written = 0.0

    def start(self) -> None:
        self._thread.start()

    async def head(self) -> str:
        data = await asyncio.to_thread(self._source.head, HEAD_BYTES)
        return self._redactor.redact(data).decode("utf-8", "replace")

    async def stop(self) -> None:
        """Read the log to its present end and stop."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _STOP_S)
        if self._thread.is_alive():
            self._gap.report(0.0, "the log reader did not end in time; the last lines may be missing", "possible")

    def _run(self) -> None:
        try:
            self._source.follow(self._feed, self._report_gap, self._stop)
        except Exception as e:  # noqa: BLE001 - a thread's exception would only be printed; the gap must be recorded
            self._report_gap(0.0, f"following the log failed: {type(e).__name__}: {e}", "certain")
        finally:
            try:
                self._file.append(self._lines.flush(), time.monotonic_ns())
            except (LedgerError, OSError) as e:
                self._report_gap(0.0, f"the end of the log could not be written: {e}", "certain")
            finally:
                self._file.close()

    def _feed(self, data: bytes) -> None:
        if not self._has_room(data):
            self._lose(data, f"a log of more than {_MOST_LINES_PER_S:,} lines a second is not kept")
            return
        try:
            self._file.append(self._lines.feed(data), time.monotonic_ns())
        except (LedgerError, OSError) as e:
            self._lose(data, str(e))

    def _has_room(self, data: bytes) -> bool:
        now_s = time.monotonic()
        grown = self._lines_left + (now_s - self._counted_s) * _MOST_LINES_PER_S
        self._lines_left, self._counted_s = min(grown, float(_MOST_LINES)), now_s
        if fits := (lines := data.count(b"\n")) <= self._lines_left:
            self._lines_left -= lines
        return fits

    def _lose(self, data: bytes, why: str) -> None:
        self._lost_bytes += len(data)
        if time.monotonic() - self._lost_written > _REPEAT_S:
            self._lost_written = time.monotonic()
            self._report_gap(0.0, f"{self._lost_bytes} bytes of the log could not be written: {why}", "certain")

    def _report_gap(self, seconds: float, why: str, loss: LogLoss | None = None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._gap.report, seconds, self._redactor.text(why), loss)
        except RuntimeError:  # the loop is closed: the run is over
            return
