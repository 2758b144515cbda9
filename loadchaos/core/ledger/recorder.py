"""The files of the ledger that `run` itself writes: events, metrics, control. A lost ledger is noticed and never hidden."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from loadchaos.core.errors import LedgerError, OptionError, next_step
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import Row


def create_folder(out: Path, name: str) -> RunFolder:
    """`<out>/<name>-<UTC>/`, new; OptionError when it cannot be made or written."""
    stem = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    for attempt in range(100):
        path = out / (stem if attempt == 0 else f"{stem}-{attempt + 1}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not out.is_dir():
                raise OptionError(f"--out {out} is no folder; name one, or one that can be made") from None
            continue
        except OSError as e:
            raise OptionError(f"the run folder {path} cannot be made: {e.strerror}; {next_step(e)}") from e
        return RunFolder(path)
    raise OptionError(f"no free name for a run folder under {out}: another --out has some")


class EventRecorder:
    """Writes events.jsonl, metrics.jsonl and control.jsonl. After the first failed write `lost` says why.

    Everybody who watches or attacks is handed `event` or `metric`; a failed write must not take the watching down, so
    it is kept here, and `run` looks at `lost` in its loop and stops the load.
    """

    def __init__(self, folder: RunFolder, on_event: Callable[[Row], None]) -> None:
        self.folder = folder
        self.lost: str | None = None
        self._on_event = on_event
        self._closed = False
        self._events = Writer(folder.events, "run", part_s=HOUR_S)
        self._metrics = Writer(folder.metrics, "run", part_s=HOUR_S)
        self._control = Writer(folder.control, "run")

    def event(self, row: Row) -> None:
        """Append to events.jsonl and hand the row to whoever follows the state."""
        self._write(self._events, row)
        self._on_event(row)

    def metric(self, row: Row) -> None:
        """Append to metrics.jsonl and hand the row to whoever follows the state."""
        self._write(self._metrics, row)
        self._on_event(row)

    def control(self, what: str, why: str, **more: object) -> None:
        """Tell the Locust workers: pause, resume, or stop (`grace_s`: how long requests in flight may still go on)."""
        self._write(self._control, {"row": "control", "at_ns": time.monotonic_ns(), "what": what, "why": why, **more})

    def run(self, what: str, **more: object) -> None:
        """A `run` row: begin, load_begin, load_end, interrupted, end."""
        self.event({"row": "run", "at_ns": time.monotonic_ns(), "what": what, **more})

    def keep(self, path: Path, text: str) -> None:
        """Write a whole small file of the run folder. Raises LedgerError when it cannot be."""
        try:
            path.write_text(text)
        except OSError as e:
            raise LedgerError(f"{path}: cannot be written: {e.strerror}; {next_step(e)}") from e

    def sync(self) -> None:
        """fsync all files; once a second."""
        for writer in (self._events, self._metrics, self._control):
            try:
                writer.sync()
            except LedgerError as e:
                self.lost = self.lost or str(e)

    def close(self) -> None:
        """Close all files; rows that come later are dropped."""
        self._closed = True
        for writer in (self._events, self._metrics, self._control):
            writer.close()

    def _write(self, writer: Writer, row: Row) -> None:
        if self._closed:
            return
        try:
            writer.write(row)
        except LedgerError as e:
            self.lost = self.lost or str(e)
