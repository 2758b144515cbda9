"""Tables of `loadchaos export`: columns with SQL types, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from loadchaos.core.answer_labels import BODY_LABELS
from loadchaos.core.errors import OptionError
from loadchaos.core.latency import e2e_ns, ttft_ns
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import as_typed
from loadchaos.core.units import NS_PER_S, seconds_of


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
        for row in Tail(folder.events).rows():
            if row.get("row") == "header" and offset is None:
                offset = int(row["utc_ns"]) - int(row["mono_ns"])
            at = row.get("at_ns")
            first = at if first is None and isinstance(at, int) else first
            if row.get("row") == "run" and row.get("what") == "load_begin" and isinstance(at, int):
                first = at
                break
        if offset is None:
            raise OptionError(
                f"{folder.events} has no header, so its rows have no time: export a run whose record is whole"
            )
        return cls(offset, first or 0)

    def utc_s(self, at_ns: int) -> float:
        return (at_ns + self.offset_ns) / NS_PER_S

    def stamp(self, at_ns: object) -> str | None:
        """Format in UTC as `2026-11-21 15:08:32.243000`."""
        if not isinstance(at_ns, int):
            return None
        return datetime.fromtimestamp(self.utc_s(at_ns), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")

    def since_load_s(self, at_ns: object) -> float | None:
        return round((at_ns - self.load_ns) / NS_PER_S, 6) if isinstance(at_ns, int) else None


Record = tuple[Any, ...]


class Rows:
    """Builds the records of a table from ledger rows."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock

    def feed(self, row: Mapping[str, Any]) -> Iterable[Record]:
        raise NotImplementedError

    def rest(self) -> Iterable[Record]:
        return ()


@dataclass(frozen=True)
class Table:
    """A table: columns with SQL types, and the builder of its records."""

    name: str
    columns: dict[str, str]
    rows: Callable[[RunClock], Rows]


# -- requests ------------------------------------------------------------------------------------------------------

_BIG, _TEXT, _REAL, _TIME = "BIGINT", "VARCHAR", "DOUBLE", "TIMESTAMP"
_SAME_AS_LEDGER = {
    "traffic": _TEXT, "outcome": _TEXT, "status": _BIG, "step": _BIG, "phase": _BIG, "round": _BIG,
    "finish_reason": _TEXT, "planned_tokens": _BIG, "prompt_tokens": _BIG, "completion_tokens": _BIG,
    "cached_tokens": _BIG, "drafted_tokens": _BIG, "accepted_tokens": _BIG,
    "max_tokens": _BIG, "images": _BIG, "image_tokens": _BIG, "behaviour": _TEXT, "edge": _BIG,
    "chunks": _BIG, "bytes_out": _BIG, "bytes_in": _BIG, "length_mismatch": "BOOLEAN", "conn": _BIG,
    "reused": "BOOLEAN", "hash": _TEXT, "request_id": _TEXT, "error_code": _TEXT, "error": _TEXT,
    **dict.fromkeys((label.name for label in BODY_LABELS), _TEXT),
}  # fmt: skip
_REQUESTS = {
    "id": _TEXT, "worker": _TEXT, "count": _BIG, "due": _TIME, "due_s": _REAL, "sent_s": _REAL, "end_s": _REAL,
    "send_lag_s": _REAL, "ttft_s": _REAL, "ttfo_s": _REAL, "e2e_s": _REAL, "largest_gap_s": _REAL, **_SAME_AS_LEDGER,
}  # fmt: skip


class _Requests(Rows):
    """One record per request. Misses that share a row are one with their `count`; one without an end is `unfinished`."""

    def __init__(self, clock: RunClock) -> None:
        super().__init__(clock)
        self._begun: dict[str, Mapping[str, Any]] = {}

    def feed(self, row: Mapping[str, Any]) -> Iterator[Record]:
        kind = row.get("row")
        if kind == "begin":
            self._begun[str(row.get("id"))] = row
        elif kind == "end":
            begun = self._begun.pop(str(row.get("id")), {})
            yield self._record({**(row.get("labels") or {}), **begun, **row}, row.get("at_ns"))
        elif kind == "missed":
            missed = {**row, "outcome": "missed", "error": row.get("why"), "due_ns": row.get("at_ns")}
            yield self._record(missed, None)

    def rest(self) -> Iterator[Record]:
        for row in self._begun.values():
            yield self._record({**row, "outcome": "unfinished", "sent_ns": row.get("at_ns")}, None)
        self._begun.clear()

    def _record(self, row: Mapping[str, Any], ended_ns: object) -> Record:
        clock, due, sent = self._clock, row.get("due_ns"), row.get("sent_ns")
        answer = row.get("first_answer_ns")
        count = row.get("count") or 1
        return (
            row.get("id"),
            str(row.get("file", "")).removeprefix("requests-").removesuffix(".jsonl"),
            count,
            clock.stamp(due),
            clock.since_load_s(due),
            clock.since_load_s(sent),
            clock.since_load_s(ended_ns),
            seconds_of(_minus(sent, due)),
            seconds_of(ttft_ns(row)),
            seconds_of(_minus(answer, due)),
            seconds_of(e2e_ns(row) if ended_ns is not None else None),
            seconds_of(row.get("largest_gap_ns")),
            *(row.get(name) for name in _SAME_AS_LEDGER),
        )


def _minus(a: object, b: object) -> int | None:
    return a - b if isinstance(a, int) and isinstance(b, int) else None


# -- metrics and events --------------------------------------------------------------------------------------------


class _Metrics(Rows):
    def feed(self, row: Mapping[str, Any]) -> Iterator[Record]:
        typed = as_typed(row)
        if typed["row"] != "metrics":
            return
        at = typed.get("at_ns")
        head = (self._clock.stamp(at), self._clock.since_load_s(at), typed.get("replica"), typed.get("engine"))
        for name, value in (typed.get("values") or {}).items():
            if isinstance(value, int | float):
                yield (*head, name, value)


class _Events(Rows):
    """All other rows of events.jsonl and the findings, with JSON details."""

    def feed(self, row: Mapping[str, Any]) -> Iterator[Record]:
        kind, at = row.get("row"), row.get("at_ns")
        if kind in {"header", "log"} or row.get("file") not in {"events.jsonl", None}:
            return
        name = row.get("attack") or row.get("id") or row.get("name") or row.get("to") or row.get("source")
        columns = {"row", "file", "at_ns", "what", "replica"}
        rest = {k: v for k, v in row.items() if k not in columns}
        detail = orjson.dumps(rest, option=orjson.OPT_NON_STR_KEYS).decode()
        when = self._clock.stamp(at), self._clock.since_load_s(at)
        yield (*when, kind, row.get("what"), row.get("replica"), name, detail)


TABLES: tuple[Table, ...] = (
    Table("requests", _REQUESTS, _Requests),
    Table(
        "metrics",
        {"at": _TIME, "at_s": _REAL, "replica": _TEXT, "engine": _TEXT, "name": _TEXT, "value": _REAL},
        _Metrics,
    ),
    Table(
        "events",
        {"at": _TIME, "at_s": _REAL, "row": _TEXT, "what": _TEXT, "replica": _TEXT, "name": _TEXT, "detail": _TEXT},
        _Events,
    ),
)
