"""Files of a hunt: its settings and one row for each workload. A row is appended with one write(2) when its workload is
done, so a kill loses the workloads in flight and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.writer import Writer

SETTINGS, WORKLOADS = "hunt.json", "workloads.jsonl"
FINDINGS, RUNS, CORPUS = "findings", "runs", "corpus"
SCHEMA = 1


class Journal:
    """Rows of the workloads of a hunt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / WORKLOADS
        self.rows = [row for row in Tail(self._file).rows() if row.get("row") != "header"]
        self._writer = Writer(self._file, "hunt")

    def append(self, row: Mapping[str, Any]) -> None:
        self._writer.write(dict(row))
        self.rows.append(dict(row))

    def close(self) -> None:
        self._writer.close()


def count_of_workloads(folder: Path) -> int:
    return sum(row.get("row") != "header" for row in Tail(folder / WORKLOADS).rows())


def read_settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS
    try:
        found: dict[str, Any] = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as e:
        raise OptionError(f"{file}: the settings of the hunt cannot be read: {e}; start a new hunt") from e
    if not isinstance(found, dict) or found.get("schema", 0) > SCHEMA:
        raise OptionError(f"{file}: schema {SCHEMA} was expected: update loadchaos, or start a new hunt")
    return found
