"""Read values of the JSON object of a request."""

from __future__ import annotations

from collections.abc import Mapping

Body = Mapping[str, object]
"""The JSON object of a request, or an object inside it."""


def inside(value: object) -> Body:
    """Return a value where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Body]:
    """Return the items of a list, those that are no objects as empty ones. Empty for anything else."""
    return [inside(item) for item in value] if isinstance(value, list) else []
