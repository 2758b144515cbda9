"""The run folder: append, read back, follow. The only thing that doing and judging share.

One writer a file, append only, whole rows in one write(2), first row a header. A row torn by a full disk or a kill
never hides the next one: the writer ends the line before it goes on, the reader skips what it cannot parse and counts it.
"""

from __future__ import annotations

import heapq
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import LedgerError, how_to_read, next_step
from loadchaos.core.ledger import batch, parquet
from loadchaos.core.model import Row

SCHEMA = 1
HOUR_S = parquet.HOUR_S
_CHUNK = 1 << 20
_Source = Iterator[tuple[int, int, int, dict[str, Any]]]
_WINDOW = 512
"""How far a row may be from its place in time within its file; they are written at once, so milliseconds apart."""


def boot_id() -> str:
    """Which boot of this machine monotonic times belong to; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_behind(begin: Row) -> bool:
    """Whether a `begin` row is of what `pipeline` sent behind a request: the plan has one step for all of them."""
    return "." in str(begin.get("id"))


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


class Tail:
    """Reads a file of rows from where it stopped last time; a line without its end is left for the next time.

    `bad` counts lines that are no JSON object. A file that does not exist yet is an empty one. Behind it come its parts,
    each of which may be Parquet by now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._number = self._line = 0  # of the part, and of its lines the next one
        self.bad = 0
        self._torn = False
        self._unfolded: deque[dict[str, Any]] = deque()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every whole new row, header rows included; in place of a `well` row the rows that it stands for."""
        while self._unfolded:
            yield self._unfolded.popleft()
        over = True
        while over:
            # Asked before it is read: what is written to a part is written before the next one is there.
            over = parquet.there(parquet.part_of(self.path, self._number + 1))
            yield from self._part()
            if over:
                self.bad += self._torn
                self._number, self._line, self.offset, self._torn = self._number + 1, 0, 0, False

    def _part(self) -> Iterator[dict[str, Any]]:
        for line in self._lines(parquet.part_of(self.path, self._number)):
            # Row by row, so that a reader who stops in the middle goes on there.
            self.offset += len(line) + 1
            self._line += 1
            row = self._parse(line)
            if row is not None and row.get("row") != batch.ROW:
                yield row
            elif row is not None:
                self._unfold(row)
                while self._unfolded:
                    yield self._unfolded.popleft()

    def _lines(self, part: Path) -> Iterator[bytes]:
        """Every whole new line of a part."""
        try:
            try:
                f = part.open("rb")
            except FileNotFoundError:
                if parquet.packed(part).exists():
                    yield from parquet.lines(parquet.packed(part), self._line)
                return
        except OSError as e:
            raise LedgerError(f"{part}: cannot be read: {e.strerror}; {how_to_read(e)}") from e
        with f:
            f.seek(self.offset)
            rest = b""
            while block := f.read(_CHUNK):
                *lines, rest = (rest + block).split(b"\n")
                self._torn = bool(rest.strip())
                yield from lines

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            self.bad += 1
            return None
        if not isinstance(row, dict):
            self.bad += 1
            return None
        return row

    def _unfold(self, row: Mapping[str, Any]) -> None:
        try:
            self._unfolded.extend(batch.unfolded(row))
        except (KeyError, IndexError, TypeError, ValueError):
            self.bad += 1

    def torn(self) -> bool:
        """Whether the file ends inside a row (its writer was killed there, or is writing it now)."""
        return self._torn


class LogTail:
    """Reads server.log line by line, each with its arrival time: rows `{row: log, at_ns, source, line, text}`.

    The index (server.index.jsonl) has a row `{row: "lines", at_ns, offset, bytes, source}` per piece the keeper or the
    watcher appended; a line belongs to the piece in which it begins. Without an index lines have at_ns None.
    """

    def __init__(self, path: Path, index: Path, source: str = "server.log") -> None:
        self.path, self.source = path, source
        self._index = Tail(index)
        self._pieces: deque[tuple[int, int, str]] = deque()  # offset, at_ns, source; those behind us are dropped
        self._offset = 0
        self._rest = b""
        self._line = 0

    def rows(self, *, final: bool = False) -> Iterator[dict[str, Any]]:
        """Every whole new line; with `final` the last one too when it has no end."""
        try:
            f = self.path.open("rb")
        except FileNotFoundError:
            return
        except OSError as e:
            raise LedgerError(f"{self.path}: cannot be read: {e.strerror}; {how_to_read(e)}") from e
        with f:
            f.seek(self._offset + len(self._rest))
            while block := f.read(_CHUNK):
                self._pieces.extend(
                    (r["offset"], r["at_ns"], r.get("source", self.source))
                    for r in self._index.rows()
                    if r.get("row") == "lines" and isinstance(r.get("offset"), int) and isinstance(r.get("at_ns"), int)
                )
                *lines, rest = (self._rest + block).split(b"\n")
                for i, line in enumerate(lines):
                    # Kept exact at each line, so that a reader who stops in the middle goes on there.
                    self._rest = b"" if i + 1 < len(lines) else rest
                    yield self._row(line, len(line) + 1)
                self._rest = rest
        if final and self._rest:
            rest, self._rest = self._rest, b""
            yield self._row(rest, len(rest))

    def _row(self, line: bytes, size: int) -> dict[str, Any]:
        while len(self._pieces) > 1 and self._pieces[1][0] <= self._offset:
            self._pieces.popleft()
        piece = self._pieces[0] if self._pieces and self._pieces[0][0] <= self._offset else None
        self._offset += size
        self._line += 1
        return {
            "row": "log",
            "at_ns": piece[1] if piece else None,
            "source": piece[2] if piece else self.source,
            "line": self._line,
            "text": line.decode("utf-8", "replace").rstrip("\r"),
        }


class RunFolder:
    """Names the files of one run folder, in one place. Opening it reads nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.control = path / "control.jsonl"
        self.commands = path / "commands.jsonl"
        self.cockpit = path / "cockpit"
        self.findings = path / "findings.jsonl"
        self.server_log = path / "server.log"
        self.server_index = path / "server.index.jsonl"
        self.profile = path / "profile.yaml"
        self.plan = path / "plan.json"
        self.facts = path / "facts.json"
        self.verdict = path / "verdict.json"
        self.report_html = path / "report.html"
        self.junit = path / "junit.xml"
        self.incidents = path / "incidents"
        self.watch = path / "watch"

    def requests(self, worker: int | str) -> Path:
        """The file of one Locust worker."""
        return self.path / f"requests-{worker}.jsonl"

    @staticmethod
    def worker(requests: Path) -> int:
        """Whose file that is. Raises ValueError for the master's, who sends nothing."""
        return int(requests.name.removeprefix("requests-").removesuffix(".jsonl"))

    def request_files(self) -> list[Path]:
        """All workers' files there are now, in order of name; their later parts are read with them."""
        packed = (p.with_name(p.name.removesuffix(parquet.SUFFIX)) for p in self.path.glob("requests-*.jsonl.parquet"))
        return sorted({*self.path.glob("requests-*.jsonl"), *packed})


def _in_order(rows: Iterable[dict[str, Any]], file: str, source: int) -> _Source:
    """(time, source, number, row) of one file's rows by time, as far as a window of them tells; no two compare equal."""
    window: list[tuple[int, int, int, dict[str, Any]]] = []
    last = 0
    for number, row in enumerate(rows):
        row["file"] = file
        last = row.get("at_ns") or row.get("mono_ns") or last
        if len(window) < _WINDOW:
            heapq.heappush(window, (last, source, number, row))
        else:
            yield heapq.heappushpop(window, (last, source, number, row))
    while window:
        yield heapq.heappop(window)


class Reader:
    """Reads every file of a run as one stream of rows in order of arrival time; call `new()` again to follow.

    Each row gets a key `file`. Order between files is by `at_ns` within one call; a row without a time keeps its place
    in its file. `bad_rows` counts what could not be parsed (a torn last line included). Memory does not grow with the
    run: a file's rows are nearly in order already, and are put right within a few hundred.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._tails: dict[str, Tail] = {}
        self._logs: dict[str, LogTail] = {}

    def new(self, *, final: bool = False) -> Iterator[dict[str, Any]]:
        """Rows that came since the last call, merged by time; to be read to their end."""
        sources: list[_Source] = []
        for path in [self.folder.events, self.folder.metrics, *self.folder.request_files()]:
            tail = self._tails.setdefault(path.name, Tail(path))
            sources.append(_in_order(tail.rows(), path.name, len(sources)))
        for log, index in self.logs():
            # The keeper's log and a watched one may both be called server.log: the path in the run tells them apart.
            name = str(log.relative_to(self.folder.path))
            tail_of_log = self._logs.setdefault(name, LogTail(log, index, name))
            sources.append(_in_order(tail_of_log.rows(final=final), name, len(sources)))
        for _, _, _, row in heapq.merge(*sources):
            yield row

    def logs(self) -> list[tuple[Path, Path]]:
        """The server logs there are: the keeper's, and one file a `--server-log` under watch/logs."""
        found = [(self.folder.server_log, self.folder.server_index)]
        found += [(p, p.with_suffix(".index.jsonl")) for p in sorted((self.folder.watch / "logs").glob("*.log"))]
        return found

    @property
    def bad_rows(self) -> int:
        """Lines that were no row, plus files that end inside one."""
        return sum(t.bad + t.torn() for t in self._tails.values())
