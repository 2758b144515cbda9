"""Fields of a chat request that a server refuses, and what takes their place. The newer models of OpenAI and Azure refuse
`max_tokens`, and a `temperature` other than 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FieldChanges = tuple[tuple[str, str], ...]
"""Pairs of a refused field and the one that is sent instead; empty: none is."""

_REFUSALS = (
    (re.compile(r"'max_completion_tokens' instead"), ("max_tokens", "max_completion_tokens")),
    (re.compile(r"'temperature' (?:does not support 0|is not supported)"), ("temperature", "")),
)


def change_for(status: int, refusal: str) -> FieldChanges:
    """The change that a refusal asks for; none for another answer."""
    return tuple(change for text, change in _REFUSALS if status == 400 and text.search(refusal))[:1]


def with_changes(fields: Mapping[str, Any], changes: FieldChanges) -> dict[str, Any]:
    taken = dict(changes)
    return {taken.get(name, name): value for name, value in fields.items() if taken.get(name, name)}


def renames(changes: FieldChanges) -> FieldChanges:
    """The changes after which a request means the same."""
    return tuple(change for change in changes if change[1])


def describe(changes: FieldChanges) -> str:
    return " and ".join(f"{new} in place of {old}" if new else f"no {old}" for old, new in changes)
