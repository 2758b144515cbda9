"""Recorded request arrivals (a trace) and how a step replays one of them. The formats of trace files are in
trace_formats/. A file is read by the first format whose fields its first record has.
"""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadchaos.core.model import Output, Step
from loadchaos.profile.json_lines import json_lines, read_text
from loadchaos.profile.request_options import PayloadOptions
from loadchaos.profile.trace_formats import FORMATS, Arrival, TraceFormat
from loadchaos.profile.trace_formats.base import DAG_KEYS, WAITING, WEKA_KEYS

MS = 0.001
"""Unit of arrivals whose format has a unit of its own, in seconds."""
_Record = tuple[str, Mapping[str, object]]


@functools.lru_cache(maxsize=8)
def read(file: str) -> tuple[Arrival, ...]:
    """Read all arrivals of a trace, sorted by time. Raises ValueError with the file and line of a mistake."""
    found: list[Arrival] = []
    shape = format_of(file)
    for where, record in _records(file, is_csv=shape.is_csv):
        try:
            if shape.own_unit and (missing := sorted(shape.fields - record.keys())):
                raise ValueError(f"{' and '.join(missing)}: a value was expected")
            found += shape.arrivals(record)
        except (ValueError, TypeError) as e:
            raise ValueError(f"{where}: {e}") from e
    if not found:
        raise ValueError(f"{file}: the trace has no requests")
    found.sort(key=lambda a: a.at)
    return tuple(replace(a, at=a.at - found[0].at) for a in found)


@functools.lru_cache(maxsize=8)
def format_of(file: str) -> TraceFormat:
    """Find the format of a trace by its first record. Raises ValueError with the fields that were expected."""
    head = read_text(Path(file)).lstrip("\ufeff \n\r\t")
    is_csv = not head.startswith(("{", "[")) and "," in head.partition("\n")[0]
    first = next(_records(file, is_csv=is_csv), None)
    if first is None:
        raise ValueError(f"{file}: the trace has no requests")
    where, record = first
    for shape in FORMATS.values():
        if shape.is_csv == is_csv and shape.fields <= record.keys():
            return shape
    if not is_csv and (near := FORMATS["mooncake"]).fields & record.keys():
        return near  # it names the field that is missing
    if record.keys() >= DAG_KEYS or record.keys() >= WEKA_KEYS:
        raise ValueError(f"{where}: {WAITING}")
    known = "; ".join(f"{', '.join(sorted(f.fields))} ({f.about})" for f in FORMATS.values() if f.is_csv == is_csv)
    raise ValueError(f"{where}: no known trace: {', '.join(map(str, list(record)[:6]))}; expected were {known}")


def _records(file: str, *, is_csv: bool) -> Iterator[_Record]:
    text = read_text(Path(file))
    if is_csv:
        reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
        read_lines = 0
        try:
            for row in reader:
                read_lines = reader.line_num
                yield f"{file}:{read_lines}", row
        except csv.Error as e:  # not strict, an open quote would swallow the rows after it
            raise ValueError(f"{file}:{read_lines + 1}: a row of CSV was expected: {e}") from e
        return
    try:
        yield f"{file}:1", _object(json.loads(text), f"{file}:1")  # one object over many lines
        return
    except json.JSONDecodeError:
        pass
    for where, value in json_lines(Path(file), text):
        yield where, _object(value, where)


def _object(value: Any, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        got = "a list: write each request on a line of its own" if isinstance(value, list) else repr(value)[:80]
        raise ValueError(f"{where}: an object was expected for each request (got {got})")
    return value


def apply(step: Step, arrival: Arrival, block_tokens: int) -> Step:
    payload: Mapping[str, PayloadOptions] = step.payload
    payload = {n: o.replay(arrival.input_tokens, arrival.blocks, block_tokens) for n, o in payload.items()}
    return replace(step, payload=payload, output=Output(exact=arrival.output_tokens))
