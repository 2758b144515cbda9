"""Write the run process's own files: events, metrics and control."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

from loadchaos.core import own_folder
from loadchaos.core.errors import LedgerError, OptionError, next_step
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.parquet import HOUR_S
from loadchaos.core.ledger.rows import AnyRow, ControlEvent, ControlRow, RunDetail, RunEvent
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.redact import Redactor


def create_folder(out: Path, name: str) -> RunFolder:
    """Create the run folder `<out>/<name>-<UTC>/`. Raises OptionError on failure."""
    stem = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    for attempt in range(100):
        path = out / (stem if attempt == 0 else f"{stem}-{attempt + 1}")
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            if not out.is_dir():
                raise OptionError(f"--out {out} is not a folder; give a folder that exists or can be created") from None
            continue
        except OSError as e:
            raise OptionError(f"the run folder {path} cannot be created: {e.strerror}; {next_step(e)}") from e
        own_folder.seal(path)
        return RunFolder(path)
    raise OptionError(f"{out} has no free name for a run folder; choose another folder with --out")


class EventRecorder:
    """Writes events.jsonl, metrics.jsonl and control.jsonl. Monitors and attacks get `event` or `metric` to write with.
    A failed write must not stop them: it raises nothing, `lost` holds the reason, and the run checks `lost` in its loop
    and stops the load. Secrets that a row repeats are hidden, here and for `on_event`.
    """

    def __init__(self, folder: RunFolder, on_event: Callable[[AnyRow], None], redactor: Redactor | None = None) -> None:
        self.folder, self.redactor = folder, redactor or Redactor()
        self.lost: str | None = None
        self._on_event = on_event
        self._closed = False
        self._events = Writer(folder.events, "run", part_s=HOUR_S)
        self._metrics = Writer(folder.metrics, "run", part_s=HOUR_S)
        self._control = Writer(folder.control, "run")

    def event(self, row: AnyRow) -> None:
        row = self.redactor.data(row)
        self._write(self._events, row)
        self._on_event(row)

    def metric(self, row: AnyRow) -> None:
        row = self.redactor.data(row)
        self._write(self._metrics, row)
        self._on_event(row)

    def control(self, what: ControlEvent, why: str, grace_s: float | None = None) -> None:
        """Write an order to the workers. After `stop`, requests in flight may go on for `grace_s`."""
        row: ControlRow = {"row": "control", "at_ns": time.monotonic_ns(), "what": what, "why": why}
        if grace_s is not None:
            row["grace_s"] = grace_s
        self._write(self._control, row)

    def run(self, what: RunEvent, **detail: Unpack[RunDetail]) -> None:
        self.event({"row": "run", "at_ns": time.monotonic_ns(), "what": what, **detail})

    def keep(self, path: Path, text: str) -> None:
        """Write a small file of the run folder. Raises LedgerError on failure."""
        try:
            path.write_text(text)
        except OSError as e:
            raise LedgerError(f"{path}: cannot be written: {e.strerror}; {next_step(e)}") from e

    def sync(self) -> None:
        """Call fsync on all files; once a second."""
        for writer in (self._events, self._metrics, self._control):
            try:
                writer.sync()
            except LedgerError as e:
                self.lost = self.lost or str(e)

    def close(self) -> None:
        self._closed = True
        for writer in (self._events, self._metrics, self._control):
            writer.close()

    def _write(self, writer: Writer, row: AnyRow) -> None:
        if self._closed:
            return
        try:
            writer.write(row)
        except LedgerError as e:
            self.lost = self.lost or str(e)
