"""Read the log lines of a document that a log store exported.

Known by their shape: JSON documents around many records (Google Cloud, CloudWatch, Loki, Grafana, Elasticsearch, OTLP,
Datadog), CSV with a column of messages, and logs whose newest line comes first. Other text passes unchanged.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, islice, pairwise

from loadchaos.analysis.classify.prefixes import ISO_STAMP, TEXT_KEYS, TIME_KEYS, record_texts
from loadchaos.core.foreign_json import json_value
from loadchaos.core.units import iso_utc

LONGEST_CHARS = 256 << 20
"""A document that is longer is read line by line."""
_HEAD_LINES = 40
_FEWEST_STAMPS = 5  # of a head whose newest line comes first
_NS_OF_DIGITS = {10: 10**9, 13: 10**6, 16: 10**3, 19: 1}  # seconds, ms, us, ns since 1970
_FEWEST_DIGITS = 10


def log_lines(lines: Iterable[str], *, longest_line: int) -> Iterator[str]:
    """Give the lines of a log, oldest first.

    Args:
        lines: Lines of a file.
        longest_line: Length at which the reader cut lines, so that the parts of a longer one follow each other.
    """
    rest = iter(lines)
    head = list(islice(rest, _HEAD_LINES))
    first = next((line.strip() for line in head if line.strip()), "")
    whole = chain(head, rest)
    if first[:1] in ("{", "[") and not _is_record(first, alone=len(head) == 1):
        each = len(head) > 1 and all(json_value(line) is not None for line in head if line.strip())
        return _of_json_lines(whole) if each else _of_document(whole, longest_line)
    if (columns := _columns(first)) is not None:
        return _of_table(whole, columns, longest_line)
    return _reversed(whole) if _newest_first(head) else whole


def _is_record(first: str, *, alone: bool) -> bool:
    """True for the first of many JSON records, one in each line."""
    found = json_value(first)
    return not alone and isinstance(found, dict) and bool(record_texts(found))


def _of_document(lines: Iterator[str], longest_line: int) -> Iterator[str]:
    read, whole = _read(lines)
    if not whole:
        yield from chain(read, lines)
        return
    found = list(_records(json_value(_joined(read, longest_line))))
    if all(at is not None for at, _ in found):
        found.sort(key=lambda record: record[0] or 0)  # stable: records of one time keep their order
    yield from _stamped(found) if found else read


def _of_json_lines(lines: Iterator[str]) -> Iterator[str]:
    """Lines of a file with one document in each line (OTLP's file exporter), which stands in the order of time."""
    for line in lines:
        found = list(_records(json_value(line)))
        yield from _stamped(found) if found else [line]


def _stamped(records: Iterable[tuple[int | None, str]]) -> Iterator[str]:
    for at, text in records:
        stamp = "" if at is None else iso_utc(at / 1e9, "microseconds") + " "
        for line in text.splitlines():
            yield stamp + line


def _joined(read: list[str], longest_line: int) -> str:
    return "".join(line if len(line) >= longest_line else line + "\n" for line in read)


def _records(node: object) -> Iterator[tuple[int | None, str]]:
    """Times (ns since 1970, None if not known) and texts of the records below a node of JSON."""
    if isinstance(node, list):
        if len(node) >= 2 and isinstance(node[0], str) and isinstance(node[1], str) and node[0].isdigit():  # Loki
            yield _time_ns(node[0]), node[1]
        elif node and all(isinstance(cell, dict) and {"field", "value"} <= cell.keys() for cell in node):  # Insights
            yield from _records({cell["field"]: cell["value"] for cell in node})
        else:
            for child in node:
                yield from _records(child)
    elif isinstance(node, dict):
        at = next((node[key] for key in TIME_KEYS if node.get(key)), None)
        texts = record_texts(node) if at is not None else []
        if texts:
            yield _time_ns(at), "\n".join(texts)
        else:
            for child in node.values():
                yield from _records(child)


def _time_ns(value: object) -> int | None:
    """Read a time: ISO 8601, or seconds, ms, us or ns since 1970."""
    text = str(value).strip()
    digits = text.split(".")[0]
    if digits.isdecimal() and _FEWEST_DIGITS <= len(digits) <= max(_NS_OF_DIGITS):
        return int(digits) * _NS_OF_DIGITS.get(len(digits), 1)
    found = ISO_STAMP.search(text)
    if found is None:
        return None
    try:
        second = datetime.fromisoformat(f"{found['year']}-{found['day']}T{found['time']}+00:00")
    except ValueError:
        return None
    fraction = (found["fraction"] or "0")[:9].ljust(9, "0")
    return int(second.timestamp()) * 10**9 + int(fraction)


def _columns(first: str) -> tuple[int, int] | None:
    """Columns of time and message of a table in CSV; None for other text."""
    if "," not in first or len(first) > 1000:
        return None
    try:
        names = [name.strip().strip('"').lower() for name in next(csv.reader([first]), [])]
    except csv.Error:  # a carriage return in the middle
        return None
    message = next((names.index(name) for name in (*TEXT_KEYS, "body", "content") if name in names), None)
    time = next((names.index(name.lower()) for name in TIME_KEYS if name.lower() in names), None)
    if message is None or time is None or not all(re.fullmatch(r"[\w@. /:-]{1,60}", name) for name in names):
        return None
    return time, message


def _of_table(lines: Iterator[str], columns: tuple[int, int], longest_line: int) -> Iterator[str]:
    read, whole = _read(lines)
    try:
        rows = list(csv.reader(io.StringIO(_joined(read, longest_line))))[1:] if whole else []
    except csv.Error:  # a field that is too long: no table
        rows = []
    if not rows:
        yield from chain(read, lines)
        return
    time, message = columns
    found = [(_time_ns(row[time]) or 0, row[message]) for row in rows if len(row) > max(columns)]
    if all(at for at, _ in found):
        found.sort(key=lambda record: record[0])
    for _, text in found:
        yield from text.splitlines()


def _reversed(lines: Iterator[str]) -> Iterator[str]:
    read, whole = _read(lines)
    yield from reversed(read) if whole else chain(read, lines)


def _read(lines: Iterator[str]) -> tuple[list[str], bool]:
    """The lines, and whether they are all: a longer document stays in the order of its lines."""
    read, size = [], 0
    for line in lines:
        read.append(line)
        size += len(line)
        if size > LONGEST_CHARS:
            return read, False
    return read, True


def _newest_first(head: list[str]) -> bool:
    """True where the stamps of the first lines never rise, and fall."""
    stamps = [
        f"{found['year']}-{found['day']}T{found['time']}"
        for line in head
        if (found := ISO_STAMP.search(line[:200])) is not None
    ]
    falling = all(later <= earlier for earlier, later in pairwise(stamps))
    return len(stamps) >= _FEWEST_STAMPS and falling and stamps[-1] < stamps[0]
