"""Read the rows and log lines of a run folder, whole or while it grows."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson

from loadchaos.core.errors import LedgerError, how_to_read
from loadchaos.core.ledger import batch, parquet
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import AnyRow, LogRow, WellRow, as_typed, at_ns_of
from loadchaos.core.model import Row

_CHUNK = 1 << 20
_Placed = tuple[int, int, int, AnyRow]
"""Time, number of the source, number in it, row: no two are equal, so that rows are never compared."""
Accept = Callable[[Row], bool]
_WINDOW = 512
"""Rows of a file that are sorted at a time. A file is nearly in order: rows are milliseconds from their place."""


class Tail:
    """Reads new rows of a file, with its later parts, JSONL or Parquet. A line without its end is left for the next
    call. `bad` counts lines that are not JSON objects. A file that does not exist yet counts as empty.
    """

    def __init__(self, path: Path, accept: Accept | None = None) -> None:
        self.path = path
        self._accept = accept
        self.offset = 0
        self._number = self._line = 0  # of the part, and of its lines the next one
        self.bad = 0
        self.torn = False  # the file ends inside a row (killed or still writing)
        self._unfolded: deque[AnyRow] = deque()

    def rows(self) -> Iterator[AnyRow]:
        """Give every complete new row, with headers and with `well` rows unfolded."""
        while self._unfolded:
            yield self._unfolded.popleft()
        finished = True
        while finished:
            # Checked before the read: a part is complete before the next one is created.
            finished = parquet.exists(parquet.part_of(self.path, self._number + 1))
            yield from self._part()
            if finished:
                self.bad += self.torn
                self._number, self._line, self.offset, self.torn = self._number + 1, 0, 0, False

    def _part(self) -> Iterator[AnyRow]:
        for line in self._lines(parquet.part_of(self.path, self._number)):
            # Row by row, so that a reader who stops in the middle goes on there.
            self.offset += len(line) + 1
            self._line += 1
            row = self._parse(line)
            if row is None:
                continue
            if row["row"] == "well":
                self._unfold(row)
                while self._unfolded:
                    yield self._unfolded.popleft()
            elif self._accept is None or self._accept(row):
                yield row
            else:
                self.bad += 1

    def _lines(self, part: Path) -> Iterator[bytes]:
        try:
            try:
                f = part.open("rb")
            except FileNotFoundError:
                if parquet.parquet_of(part).exists():
                    yield from parquet.read_lines(parquet.parquet_of(part), self._line)
                return
        except OSError as e:
            raise LedgerError(f"{part}: cannot be read: {e.strerror}; {how_to_read(e)}") from e
        with f:
            f.seek(self.offset)
            rest = b""
            while block := f.read(_CHUNK):
                *lines, rest = (rest + block).split(b"\n")
                self.torn = bool(rest.strip())
                yield from lines

    def _parse(self, line: bytes) -> AnyRow | None:
        if not line.strip():
            return None
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        if isinstance(row, dict):
            return as_typed(row)
        self.bad += 1
        return None

    def _unfold(self, row: WellRow) -> None:
        try:
            rows = list(batch.unfold_row(row))
            if self._accept is not None and not all(map(self._accept, rows)):
                raise ValueError("a row does not fit its kind")
            self._unfolded.extend(rows)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            self.bad += 1


class LogTail:
    """Reads new lines of a server log as `log` rows with their arrival times. The index has one `lines` row for each
    piece that was appended. A line belongs to the piece in which it begins. Without an index `at_ns` is None.
    """

    def __init__(self, path: Path, index: Path, source: str = "server.log") -> None:
        self.path, self.source = path, source
        self._index = Tail(index)
        self._pieces: deque[tuple[int, int, str]] = deque()  # offset, at_ns, source; pieces already read are dropped
        self._offset = 0
        self._rest = b""
        self._line = 0

    def rows(self, *, final: bool = False) -> Iterator[LogRow]:
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
                    if r["row"] == "lines" and isinstance(r.get("offset"), int) and isinstance(r.get("at_ns"), int)
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

    def _row(self, line: bytes, size: int) -> LogRow:
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


def _in_order(rows: Iterable[AnyRow], file: str, source: int) -> Iterator[_Placed]:
    """Sort one file's rows by time within a window. Gives (time, source, number, row); no two compare equal."""
    window: list[_Placed] = []
    last = 0
    for number, row in enumerate(rows):
        row["file"] = file
        last = at_ns_of(row) or last
        if len(window) < _WINDOW:
            heapq.heappush(window, (last, source, number, row))
        else:
            yield heapq.heappushpop(window, (last, source, number, row))
    while window:
        yield heapq.heappop(window)


class Reader:
    """Reads all files of a run as one stream of rows in order of time. Call `new()` again to follow a run. Each row
    gets a key `file`. Files are merged by `at_ns` within one call; a row without a time keeps its place in its file.
    `bad_rows` counts lines that could not be parsed, with a torn last line. Memory does not grow with the run.
    """

    def __init__(self, folder: RunFolder, accept: Accept | None = None) -> None:
        self.folder = folder
        self._accept = accept
        self._tails: dict[str, Tail] = {}
        self._logs: dict[str, LogTail] = {}

    def new(self, *, final: bool = False) -> Iterator[AnyRow]:
        """Give the rows since the last call, merged by time; read them to the end."""
        sources: list[Iterator[_Placed]] = []
        for path in [self.folder.events, self.folder.metrics, *self.folder.request_files()]:
            tail = self._tails.setdefault(path.name, Tail(path, self._accept))
            sources.append(_in_order(tail.rows(), path.name, len(sources)))
        for log, index in self.logs():
            # The log of a launched server and a watched one may both be called server.log: use the path in the run.
            name = str(log.relative_to(self.folder.path))
            tail_of_log = self._logs.setdefault(name, LogTail(log, index, name))
            sources.append(_in_order(tail_of_log.rows(final=final), name, len(sources)))
        for _, _, _, row in heapq.merge(*sources):
            yield row

    def logs(self) -> list[tuple[Path, Path]]:
        found = [(self.folder.server_log, self.folder.server_index)]
        found += [(p, p.with_suffix(".index.jsonl")) for p in sorted((self.folder.watch / "logs").glob("*.log"))]
        return found

    @property
    def bad_rows(self) -> int:
        """Number of lines that are not rows, plus files that end inside a row."""
        return sum(t.bad + t.torn for t in self._tails.values())
