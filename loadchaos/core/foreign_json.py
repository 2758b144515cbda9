"""JSON that others wrote, read without an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def json_value(text: str | bytes) -> Any:
    """Parse JSON; None for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; an empty one for anything else."""
    found = json_value(text)
    return found if isinstance(found, dict) else {}


def strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, but not the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)
