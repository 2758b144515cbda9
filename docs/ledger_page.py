"""Print docs/ledger.md, made from the row types of rows.py: `python -m docs.ledger_page > docs/ledger.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

from loadchaos.core.ledger import rows
from loadchaos.core.model import OUTCOMES, Outcome

_INTRO = """\
# The ledger

Generated from `loadchaos/core/ledger/rows.py` by `make docs`.

The ledger is the run folder `runs/<name>-<UTC>/`. It is the only thing that the load and the analysis share: everything in
a report follows from these files.

- A file has one writer, which only appends. Each row is one JSON object on one line, written with a single write(2).
- The first row of every file is a `header`. Fields in `ns, moment` are CLOCK_MONOTONIC nanoseconds of the machine and boot
  that the header names; its `mono_ns` and `utc_ns` are one moment on both clocks.
- Readers ignore fields they do not know. A line that is not a row (a torn write) is skipped and counted.
- A worker on another machine writes its file where it runs, with moments translated to its master's clock. The master's
  copy is equal byte by byte.

"""

_AFTER_FILES = """\

## Parts and Parquet

Each hour `requests-<w>.jsonl`, `metrics.jsonl`, `events.jsonl` and the log indices continue in a new part
(`requests-0.jsonl.1` and so on), each with its own header. An hour later a finished part is converted to Parquet
(`requests-0.jsonl.parquet`, `requests-0.jsonl.1.parquet`), which needs about an eighth of the space. Every line is kept as
it was (columns `n` and `line`), with `row`, `at_ns`, `id`, `traffic` and `outcome` as columns of their own. The JSONL is
deleted once all lines have been read back equal. The first part of `events.jsonl` stays JSONL, because it
marks a folder as a run.

Every command reads parts and Parquet as one file. DuckDB can query `requests-*.parquet`. Logs stay text.

## Other files of the run folder

| file | content |
|---|---|
| `server.log`, `watch/logs/<label>.log` | server logs as they came, redacted |
| `profile.yaml`, `plan.json`, `facts.json` | the profile as resolved, what the workers read, what is known of the server |
| `verdict.json` | the verdict (`schemas/verdict.json`) |
| `report.html`, `junit.xml` | reports |
| `incidents/NNN-<id>/` | `incident.json`, `incident.md`, `server.log.excerpt`, `requests.jsonl` |
| `incidents/bodies/` | request bodies that `requests.jsonl` names, by hash |
| `cockpit/` | pages of the web UI's tabs (`--web`) |
| `locust.log` | output of the load processes |
| `loadchaos-error.txt` | trace of an internal error; absent otherwise |

## Rows

A field marked * is absent in some rows. Outcomes: OUTCOMES.
"""


def page() -> str:
    lines = [_INTRO + "| file | writer | rows |", "|---|---|---|"]
    for file in rows.FILES:
        kinds = " ".join(f"[`{_tag(kind)}`](#{_tag(kind)})" for kind in file.rows)
        lines.append(f"| `{file.name}` | {file.writer} | {kinds} |")
    text = "\n".join(lines) + "\n" + _AFTER_FILES.replace("OUTCOMES", ", ".join(f"`{o}`" for o in OUTCOMES))
    return text + "".join(_section(kind) for kind in rows.KINDS.values())


def _tag(kind: type) -> str:
    return next(tag for tag, found in rows.KINDS.items() if found is kind)


def _section(kind: type) -> str:
    files = ", ".join(f"`{file.name}`" for file in rows.FILES if kind in file.rows)
    where = files or ("every file" if kind is rows.HeaderRow else "no file")
    lines = [f"\n### {_tag(kind)}\n", inspect.getdoc(kind) or "", f"\nFile: {where}.\n"]
    lines += ["| field | type | unit | meaning |", "|---|---|---|---|"]
    for one in rows.fields_of(kind):
        star = "" if one.required else "*"
        lines.append(f"| `{one.name}`{star} | {_type(one.type)} | {one.unit} | {one.meaning} |")
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(arg) for arg in args))
    if hint == Outcome:
        return "outcome"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "object"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {_type(args[0])}"
    if is_typeddict(hint):
        return "object"
    names = {int: "int", float: "number", str: "string", bool: "bool", NoneType: "null", Any: "any"}
    return names[hint]


if __name__ == "__main__":
    sys.stdout.write(page())
