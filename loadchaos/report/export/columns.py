"""Column: one entry is all that a value of an export needs. The tables of `loadchaos export` and the result of `vllm
bench serve` are such entries (in tables.py and vllm_bench.py); docs/tables.py writes their documentation.
"""

from __future__ import annotations

from collections.abc import Callable
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
