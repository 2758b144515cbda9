"""Read numbers of a foreign trace. Each raises ValueError with the place, the key and what was expected."""

from __future__ import annotations

from collections.abc import Mapping


def number_of(where: str, row: object, name: str, unit: str) -> float | None:
    """Read a number of at least 0; None where there is none."""
    value = row.get(name) if isinstance(row, Mapping) else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"{where}: {name}: {unit} of at least 0 were expected (got {value!r:.40})")
    return float(value)


def whole_of(where: str, row: Mapping[str, object], name: str, least: int = 1) -> int:
    value = row.get(name)
    if type(value) is not int or value < least:
        raise ValueError(f"{where}: {name}: a whole number of at least {least} was expected (got {value!r:.40})")
    return value
