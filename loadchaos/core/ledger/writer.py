"""Append rows to one file of the ledger, each with a single write(2). A file has one writer and begins with a header. A
row torn by a full disk or a kill does not damage the next one: the writer ends the torn line first, and readers skip
and count it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.ledger import parquet
from loadchaos.core.model import Row

SCHEMA = 1


def boot_id() -> str:
    """Read the id of this boot; empty: unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Writer:
    """Appends rows to one file of the run folder, as its only writer. A failed write raises LedgerError: a run without
    its record proves nothing. `lost` counts the rows that were not written. While `holding` is true, rows wait for the
    next `flush` and share its write(2); a kill in between loses them. The header names `writer` and has the fields of
    `extra`. A new part (`requests-0.jsonl.1` and so on) begins after `part_s` seconds.
    """

    def __init__(
        self,
        path: Path,
        writer: str,
        extra: Callable[[], Mapping[str, object]] | None = None,
        part_s: float | None = None,
    ) -> None:
        self.path = path
        self._writer, self._extra, self._part_s = writer, extra or dict, part_s
        self._number = parquet.last_part(path)
        self.lost = 0
        self.holding = False
        self._held: list[bytes] = []
        self._unsynced = False
        self._torn = False
        try:
            self._fd = self._open(path)
        except OSError as e:
            raise LedgerError(f"{path}: cannot be written: {e.strerror}; {next_step(e)}") from e
        self._header()

    def _open(self, path: Path) -> int:
        path = parquet.part_of(path, self._number)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # A predecessor may have been killed inside a row: then this line ends it.
        size = os.fstat(fd).st_size
        if size:
            with path.open("rb") as f:
                f.seek(size - 1)
                self._torn = f.read(1) != b"\n"
        self._since = time.monotonic()
        return fd

    def _header(self) -> None:
        self._append(
            {
                "row": "header",
                "schema": SCHEMA,
                "writer": self._writer,
                "pid": os.getpid(),
                "boot_id": boot_id(),
                "mono_ns": time.monotonic_ns(),
                "utc_ns": time.time_ns(),
                **self._extra(),
            }
        )

    def _next_part(self) -> None:
        """Continue in a new part; in the old one if none can be created."""
        self._number += 1
        try:
            fd = self._open(self.path)
        except OSError:
            self._number -= 1
            self._since = time.monotonic()
            return
        try:
            self.sync()
        finally:
            os.close(self._fd)
            self._fd = fd
        self._header()

    def write(self, row: Row) -> None:
        """Append one row, at once unless rows are held."""
        if self._part_s is not None and not self.holding and time.monotonic() - self._since > self._part_s:
            self._next_part()
        self._append(row)

    def _append(self, row: Row) -> None:
        try:
            data = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
        except TypeError:
            # A process title or an argument that is no UTF-8 (lone surrogates), or a value of a foreign type.
            data = json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
        self._held.append(data)
        if not self.holding:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        rows, self._held = self._held, []
        data = b"".join((b"\n", *rows)) if self._torn else b"".join(rows)
        self._unsynced = True
        try:
            done = os.write(self._fd, data)
        except OSError as e:
            self.lost += len(rows)
            raise LedgerError(f"{self.path}: a row could not be written: {e.strerror}; {next_step(e)}") from e
        self._torn = done < len(data)
        if self._torn:
            self.lost += data[done:].count(b"\n")
            raise LedgerError(
                f"{self.path}: only {done} of {len(data)} bytes of a row could be written: free some space there"
            )

    def sync(self) -> None:
        """Write held rows, and call fsync where rows were written since; the caller does it once a second."""
        self.flush()
        if not self._unsynced:
            return
        try:
            os.fsync(self._fd)
            self._unsynced = False
        except OSError as e:
            raise LedgerError(f"{self.path}: fsync failed: {e.strerror}; {next_step(e)}") from e

    def close(self) -> None:
        self.flush()
        os.close(self._fd)
