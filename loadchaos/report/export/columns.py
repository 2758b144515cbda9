"""Column: one entry is all that a value of an export needs. The tables of `loadchaos export`, the result of `vllm bench
serve` and the attributes of OTLP are such entries (in tables.py, vllm_bench.py and otlp.py); docs/tables.py writes their
documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A value of an export: its name, its meaning, and how it is read from a source. `type` is its SQL type."""

    name: str
    meaning: str
    read: Callable[[T], object]
    type: str = "VARCHAR"


def values_of(columns: Iterable[Column[T]], source: T) -> dict[str, object]:
    return {column.name: column.read(source) for column in columns}
