"""Read numbers from JSON of any shape without an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MS, S = 1e-3, 1.0
"""Units of latencies, in seconds."""
_LARGEST = 1e15


def at(data: object, *path: str) -> object:
    """Find a value in nested mappings; None where there is none."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def each(data: object) -> Iterator[object]:
    """Yield the items of a list; nothing of any other value."""
    yield from data if isinstance(data, list) else ()


def number(value: object) -> float | None:
    """Read a number that is finite and not negative, or a text of one."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _LARGEST else None


def count(data: object, *path: str) -> int | None:
    found = number(at(data, *path))
    return None if found is None else int(found)


def difference(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else max(0, whole - part)


def statistics(data: object, names: Mapping[str, str], unit_s: float) -> dict[str, float]:
    """Read latencies in seconds by statistic; `names` has the key in the file of each statistic."""
    found = {statistic: number(at(data, name)) for statistic, name in names.items()}
    return {statistic: value * unit_s for statistic, value in found.items() if value is not None}
