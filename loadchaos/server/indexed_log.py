"""Write a log and its index into a run folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.rows import LinesRow
from loadchaos.core.ledger.writer import Writer

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class IndexedLog:
    """The log and `<name>.index.jsonl` beside it, whose rows (offset, bytes, arrival time) go before the bytes that
    they describe. Each hour the index starts a new part, like every file of rows; the log stays one file. `source` is a
    field of each row. Raises LedgerError or OSError when the disk refuses.
    """

    def __init__(self, log: Path, writer: str, source: str) -> None:
        self._source = source
        self._index = Writer(log.with_suffix(".index.jsonl"), writer, lambda: {"source": source}, parquet.HOUR_S)
        self._fd = os.open(log, _FLAGS, 0o600)
        self._offset = os.fstat(self._fd).st_size

    def append(self, data: bytes, at_ns: int) -> None:
        if not data:
            return
        row: LinesRow = {
            "row": "lines",
            "at_ns": at_ns,
            "offset": self._offset,
            "bytes": len(data),
            "source": self._source,
        }
        self._index.write(row)
        while data:
            done = os.write(self._fd, data)
            self._offset += done
            data = data[done:]

    def close(self) -> None:
        """Sync and close both files; never raises."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
        os.close(self._fd)
        with contextlib.suppress(LedgerError):
            self._index.sync()
        self._index.close()
