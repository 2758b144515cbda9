"""Tables of `loadchaos export`. A column is one entry of REQUESTS, METRICS or EVENTS; docs/tables.py documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Generic, TypeVar, get_args

import orjson

from loadchaos.core.answer_labels import BODY_LABELS
from loadchaos.core.errors import OptionError
from loadchaos.core.latency import e2e_ns, ttft_ns
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import AnyRow, BeginRow, EndRow, MetricsRow, MissedRow, as_typed, fields_of
from loadchaos.core.model import Row
from loadchaos.core.units import NS_PER_S, seconds_of

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A value of an export: its name, its meaning, and how it is read from a source. `type` is its SQL type."""

    name: str
    meaning: str
    read: Callable[[T], object]
    type: str = "VARCHAR"


@dataclass(frozen=True)
class RunClock:
    """Converts monotonic time of a run to UTC; `load_ns` is the start of the load, else the first row."""

    offset_ns: int
    load_ns: int

    @classmethod
    def of(cls, folder: RunFolder) -> RunClock:
        """Read the header of events.jsonl. Raises OptionError where there is none."""
        offset: int | None = None
        first: int | None = None
        for row in Tail(folder.events, fits_its_kind).rows():
            if row["row"] == "header":
                offset = row["utc_ns"] - row["mono_ns"] if offset is None else offset
                continue
            if row["row"] == "run" and row.get("what") == "load_begin":
                first = row["at_ns"]
                break
            first = row.get("at_ns") if first is None else first
        if offset is None:
            raise OptionError(
                f"{folder.events} has no header, so its rows have no time: export a run whose record is whole"
            )
        return cls(offset, first or 0)

    def utc_s(self, at_ns: int) -> float:
        return (at_ns + self.offset_ns) / NS_PER_S

    def stamp(self, at_ns: int | None) -> str | None:
        """Format in UTC as `2026-11-21 15:08:32.243000`."""
        if at_ns is None:
            return None
        return datetime.fromtimestamp(self.utc_s(at_ns), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")

    def since_load_s(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else round((at_ns - self.load_ns) / NS_PER_S, 6)


class Records(RowFold, Generic[T]):
    """Builds the records of a table from ledger rows."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock
        self._made: list[T] = []

    def taken(self) -> list[T]:
        """Records made since the last call."""
        made, self._made = self._made, []
        return made

    def rest(self) -> Iterable[T]:
        return ()


@dataclass(frozen=True)
class Table(Generic[T]):
    """A table: its columns, and the builder of its records."""

    name: str
    columns: Sequence[Column[T]]
    records: Callable[[RunClock], Records[T]]

    @property
    def types(self) -> dict[str, str]:
        return {column.name: column.type for column in self.columns}

    def cells(self, records: Iterable[T]) -> Iterator[list[object]]:
        return ([column.read(record) for column in self.columns] for record in records)


# -- requests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestRecord:
    """A request with its rows; without `end` it is unfinished. `missed` is a count of requests that were not sent."""

    clock: RunClock
    begin: BeginRow | None
    end: EndRow | None = None
    missed: MissedRow | None = None

    @cached_property
    def fields(self) -> Mapping[str, object]:
        """Labels of the answer, and fields of its rows: the last row counts."""
        labels = None if self.end is None else self.end.get("labels")
        rows: tuple[Mapping[str, object] | None, ...] = (labels, self.begin, self.missed, self.end)
        return {name: value for row in rows if row is not None for name, value in row.items()}

    @property
    def outcome(self) -> str:
        if self.end is None:
            return "unfinished" if self.missed is None else "missed"
        return self.end.get("outcome")

    @property
    def due_ns(self) -> int | None:
        if self.missed is not None:
            return self.missed.get("at_ns")
        row = self.end or self.begin
        return None if row is None else row.get("due_ns")

    @property
    def sent_ns(self) -> int | None:
        if self.end is not None:
            return self.end.get("sent_ns")
        return None if self.begin is None else self.begin.get("at_ns")

    def since_due_ns(self, at_ns: int | None) -> int | None:
        return None if at_ns is None or self.due_ns is None else at_ns - self.due_ns

    def worker(self) -> str:
        return str(self.fields.get("file") or "").removeprefix("requests-").removesuffix(".jsonl")

    def count(self) -> int:
        return 1 if self.missed is None else self.missed.get("count") or 1

    def error(self) -> object:
        return self.fields.get("error") if self.missed is None else self.missed.get("why")


class _Requests(Records[RequestRecord]):
    def __init__(self, clock: RunClock) -> None:
        super().__init__(clock)
        self._begun: dict[str, BeginRow] = {}

    def on_begin(self, row: BeginRow) -> None:
        self._begun[row["id"]] = row

    def on_end(self, row: EndRow) -> None:
        self._made.append(RequestRecord(self._clock, self._begun.pop(row["id"], None), row))

    def on_missed(self, row: MissedRow) -> None:
        self._made.append(RequestRecord(self._clock, None, missed=row))

    def rest(self) -> Iterator[RequestRecord]:
        begun, self._begun = self._begun, {}
        return (RequestRecord(self._clock, row) for row in begun.values())


_FIELDS = {field.name: field for kind in (BeginRow, EndRow) for field in fields_of(kind)}


def _of_row(name: str) -> Column[RequestRecord]:
    """Make the column of a field of the rows of a request. Its meaning and its type are those of rows.py."""
    field = _FIELDS[name]
    types = {bool: "BOOLEAN", int: "BIGINT"}
    kinds = {field.type, *get_args(field.type)} - {type(None)}
    sql = next((sql for kind, sql in types.items() if kind in kinds and str not in kinds), "VARCHAR")
    return Column(name, field.meaning, _field(name), sql)


def _field(name: str) -> Callable[[RequestRecord], object]:
    return lambda r: r.fields.get(name)


def _length(name: str, meaning: str, read_ns: Callable[[RequestRecord], int | None]) -> Column[RequestRecord]:
    return Column(name, meaning, lambda r: seconds_of(read_ns(r)), "DOUBLE")


def _in_load(name: str, meaning: str, read_ns: Callable[[RequestRecord], int | None]) -> Column[RequestRecord]:
    """Make a column with a moment, in seconds of the load."""
    return Column(name, f"{meaning}, in seconds of the load", lambda r: r.clock.since_load_s(read_ns(r)), "DOUBLE")


REQUESTS: Sequence[Column[RequestRecord]] = (
    _of_row("id"),
    Column("worker", "load process that sent it", RequestRecord.worker),
    Column("count", "requests of this record; not 1 only where requests were missed", RequestRecord.count, "BIGINT"),
    Column("due", "UTC time at which the plan wanted it sent", lambda r: r.clock.stamp(r.due_ns), "TIMESTAMP"),
    _in_load("due_s", "the same", lambda r: r.due_ns),
    _in_load("sent_s", "when it was sent", lambda r: r.sent_ns),
    _in_load("end_s", "when it ended", lambda r: r.end and r.end.get("at_ns")),
    _length("send_lag_s", "from `due` until it was sent", lambda r: r.since_due_ns(r.sent_ns)),
    _length("ttft_s", "from `due` to the first token", lambda r: r.end and ttft_ns(r.end)),
    _length(
        "ttfo_s",
        "from `due` to the first token that is not reasoning",
        lambda r: r.since_due_ns(r.end and r.end.get("first_answer_ns")),
    ),
    _length("e2e_s", "from `due` to the last byte, or to its end", lambda r: r.end and e2e_ns(r.end)),
    _length("largest_gap_s", "largest gap between two chunks", lambda r: r.end and r.end.get("largest_gap_ns")),
    _of_row("traffic"),
    Column("outcome", "outcome; `unfinished`: it has no end, `missed`: it was not sent", lambda r: r.outcome),
    *map(_of_row, (
        "status", "step", "phase", "round", "finish_reason", "planned_tokens", "prompt_tokens", "completion_tokens",
        "cached_tokens", "drafted_tokens", "accepted_tokens", "max_tokens", "images", "image_tokens", "behaviour", "edge",
        "chunks", "bytes_out", "bytes_in", "length_mismatch", "conn", "reused", "hash", "request_id", "error_code",
    )),
    Column("error", "error text of the answer or of the connection; of a missed request the reason", RequestRecord.error),
    *(Column(label.name, f"{label.title}, as the server gave it", _field(label.name)) for label in BODY_LABELS),
)  # fmt: skip
"""Columns of the table of requests. Misses that share a row are one record."""


# -- metrics and events --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowRecord:
    """A row of events.jsonl or a finding; of a scrape one of its values with its name."""

    clock: RunClock
    row: AnyRow
    metric: tuple[str, float] = ("", 0.0)

    @property
    def at_ns(self) -> int | None:
        return None if self.row["row"] == "header" else self.row.get("at_ns")

    def name(self) -> object:
        fields: Mapping[str, object] = self.row
        names = ("attack", "id", "name", "to", "source")
        return next((value for name in names if (value := fields.get(name))), None)

    def detail(self) -> str:
        columns = {"row", "file", "at_ns", "what", "replica"}
        rest = {name: value for name, value in self.row.items() if name not in columns}
        return orjson.dumps(rest, option=orjson.OPT_NON_STR_KEYS).decode()


class _Metrics(Records[RowRecord]):
    def on_metrics(self, row: MetricsRow) -> None:
        self._made += (RowRecord(self._clock, row, metric) for metric in (row.get("values") or {}).items())


class _Events(Records[RowRecord]):
    def fold(self, row: Row) -> None:
        """Make a record of a row of any kind."""
        if row["row"] not in {"header", "log"} and row.get("file") in {"events.jsonl", None}:
            self._made.append(RowRecord(self._clock, as_typed(row)))


_WHEN: Sequence[Column[RowRecord]] = (
    Column("at", "UTC time", lambda r: r.clock.stamp(r.at_ns), "TIMESTAMP"),
    Column("at_s", "the same, in seconds of the load", lambda r: r.clock.since_load_s(r.at_ns), "DOUBLE"),
)
_REPLICA: Column[RowRecord] = Column("replica", "name of the replica", lambda r: r.row.get("replica"))

METRICS: Sequence[Column[RowRecord]] = (
    *_WHEN,
    _REPLICA,
    Column("engine", "label of the engine", lambda r: r.row.get("engine")),
    Column("name", "name of the metric, the same for all dialects", lambda r: r.metric[0]),
    Column("value", "its value", lambda r: r.metric[1], "DOUBLE"),
)

EVENTS: Sequence[Column[RowRecord]] = (
    *_WHEN,
    Column("row", "kind of the row, as in the ledger", lambda r: r.row["row"]),
    Column("what", "event", lambda r: r.row.get("what")),
    _REPLICA,
    Column("name", "attack, failure, check, new state or source", RowRecord.name),
    Column("detail", "the other fields of the row, as JSON", RowRecord.detail),
)
"""Columns of the table of events: all other rows of events.jsonl, and the findings."""

TABLES: tuple[Table[Any], ...] = (
    Table("requests", REQUESTS, _Requests),
    Table("metrics", METRICS, _Metrics),
    Table("events", EVENTS, _Events),
)
