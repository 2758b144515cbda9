"""Write a followed log to the run folder, redacted and with an index. The index row (offset, bytes, arrival time) is
written before the bytes it describes, as for a launched server's log. Each hour the index starts a new part, like every
file of rows; the log stays one file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.rows import HeaderRow, LinesRow
from loadchaos.core.redact import Redactor

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class LogSink:
    """Write `<label>.log` and `<label>.index.jsonl`; used by one thread. Raises OSError when the disk refuses."""

    def __init__(self, folder: Path, label: str, source: str, redactor: Redactor) -> None:
        self._redactor = redactor.fork()
        self._source = source
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{label}.log"
        self._rows = folder / f"{label}.index.jsonl"
        self._part = parquet.last_part(self._rows)
        self._index = self._next_index()
        self._log = os.open(self.path, _FLAGS, 0o600)
        self._offset = os.fstat(self._log).st_size

    def feed(self, data: bytes) -> None:
        """Add bytes of the log; a line is written when it is complete."""
        self._append(self._redactor.feed(data))

    def flush(self) -> None:
        self._append(self._redactor.flush())

    def close(self) -> None:
        try:
            self.flush()
            os.fsync(self._log)
        finally:
            os.close(self._log)
            os.close(self._index)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        at_ns = time.monotonic_ns()
        row: LinesRow = {
            "row": "lines",
            "at_ns": at_ns,
            "offset": self._offset,
            "bytes": len(data),
            "source": self._source,
        }
        if time.monotonic() - self._since > parquet.HOUR_S:
            self._part += 1
            before, self._index = self._index, self._next_index()
            os.close(before)
        self._row(self._index, row)
        while data:
            done = os.write(self._log, data)
            self._offset += done
            data = data[done:]

    def _next_index(self) -> int:
        self._since = time.monotonic()
        index = os.open(parquet.part_of(self._rows, self._part), _FLAGS, 0o600)
        self._row(
            index,
            {
                "row": "header",
                "schema": 1,
                "writer": "run",
                "pid": os.getpid(),
                "mono_ns": time.monotonic_ns(),
                "utc_ns": time.time_ns(),
                "source": self._source,
            },
        )
        return index

    def _row(self, index: int, row: LinesRow | HeaderRow) -> None:
        os.write(index, json.dumps(row, separators=(",", ":")).encode() + b"\n")
