"""Append rows to one file of the ledger: one writer a file, whole rows in one write(2), first row a header."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.ledger import parquet
from loadchaos.core.model import Row

SCHEMA = 1


def boot_id() -> str:
    """Which boot of this machine monotonic times belong to; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Writer:
    """Appends rows to one file of the run folder; nobody else may write that file.

    A failed write raises LedgerError (disk full, folder gone): a run whose record is lost proves nothing. `lost` counts
    the rows that did not get through. After a short write the torn line is ended before the next row. While it is
    `holding`, rows wait for the next `flush` and share its write(2); a kill in between loses them. With `part_s` it goes
    on in a new part of the file after so many seconds (`requests-0.jsonl.1` and so on), each with a header of its own;
    `extra` is what headers say beside.
    """

    def __init__(
        self, path: Path, writer: str, extra: Callable[[], Mapping[str, Any]] | None = None, part_s: float | None = None
    ) -> None:
        self.path = path
        self._writer, self._extra, self._part_s = writer, extra or dict, part_s
        self._number = parquet.newest(path)
        self.lost = 0
        self.holding = False
        self._held: list[bytes] = []
        self._torn = False
        try:
            self._fd = self._open(path)
        except OSError as e:
            raise LedgerError(f"{path}: cannot be written: {e.strerror}; {next_step(e)}") from e
        self._header()

    def _open(self, path: Path) -> int:
        path = parquet.part_of(path, self._number)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
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
        """Go on in a new file; where none can be had, in the old one."""
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
        """Append one row, at once unless they are held."""
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
        """Write what is held, with one write(2)."""
        if not self._held:
            return
        rows, self._held = self._held, []
        data = b"".join((b"\n", *rows)) if self._torn else b"".join(rows)
        try:
            done = os.write(self._fd, data)
        except OSError as e:
            self.lost += len(rows)
            raise LedgerError(f"{self.path}: a row could not be written: {e.strerror}; {next_step(e)}") from e
        self._torn = done < len(data)
        if self._torn:
            self.lost += data[done:].count(b"\n")
            raise LedgerError(
                f"{self.path}: only {done} of {len(data)} bytes of a row could be written: free space there"
            )

    def sync(self) -> None:
        """fsync: the caller does it each second."""
        try:
            os.fsync(self._fd)
        except OSError as e:
            raise LedgerError(f"{self.path}: cannot be kept: {e.strerror}; {next_step(e)}") from e

    def close(self) -> None:
        """Write what is held and close the file; the writer is of no use afterwards."""
        self.flush()
        os.close(self._fd)
