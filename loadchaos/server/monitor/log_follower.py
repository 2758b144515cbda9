"""Runs one source of log lines in a thread of its own and writes what comes; the loop only hears of gaps."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from loadchaos.core.ledger.rows import Emit, GapRow
from loadchaos.core.redact import Redactor
from loadchaos.server.monitor.logs import open_source
from loadchaos.server.monitor.logs.sink import LogSink

HEAD_BYTES = 1 << 16
_STOP_S = 5.0
_TELL_AGAIN_S = 10.0


class LogFollower:
    """One `--server-log`. `start` and `stop` are called on the loop; everything else happens in the thread."""

    def __init__(
        self, spec: str, replica: str, label: str, folder: Path, emit: Emit, redactor: Redactor, source: str = "log"
    ) -> None:
        self._replica, self._emit, self._redactor = replica, emit, redactor
        self._told_as = source
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._source = open_source(spec)
        self._sink = LogSink(folder, label, self._redactor.text(spec), redactor)
        self._thread = threading.Thread(target=self._run, name=f"log-{label}", daemon=True)
        self._lost_bytes = 0
        self._lost_told = 0.0

    @property
    def path(self) -> Path:
        """Where in the run folder the log is kept."""
        return self._sink.path

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    async def head(self) -> str:
        """The log's first 64 kB, redacted."""
        data = await asyncio.to_thread(self._source.head, HEAD_BYTES)
        return self._redactor.redact(data).decode("utf-8", "replace")

    async def stop(self) -> None:
        """Read what is there by now, and end."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _STOP_S)
        if self._thread.is_alive():
            self._gap(0.0, "the reader did not end in time; the last lines may be missing")

    def _run(self) -> None:
        try:
            self._source.follow(self._feed, self._tell, self._stop)
        except Exception as e:  # noqa: BLE001 - a thread's exception would only be printed: a blind spot has to be told
            self._tell(0.0, f"the log is followed no more: {type(e).__name__}: {e}")
        finally:
            try:
                self._sink.close()
            except OSError as e:
                self._tell(0.0, f"the end of the log could not be written: {e.strerror}")

    def _feed(self, data: bytes) -> None:
        try:
            self._sink.feed(data)
        except OSError as e:
            self._lost_bytes += len(data)
            if time.monotonic() - self._lost_told > _TELL_AGAIN_S:
                self._lost_told = time.monotonic()
                self._tell(0.0, f"{self._lost_bytes} bytes could not be written: {e.strerror}")

    def _tell(self, seconds: float, why: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._gap, seconds, why)
        except RuntimeError:  # the loop is closed: the run is over
            return

    def _gap(self, seconds: float, why: str) -> None:
        row: GapRow = {
            "row": "gap", "at_ns": time.monotonic_ns(), "replica": self._replica, "source": self._told_as,
            "seconds": seconds, "why": self._redactor.text(why),
        }  # fmt: skip
        self._emit(row)
