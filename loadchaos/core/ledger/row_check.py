"""Check a row from a file against its kind (rows.py).

A ledger may come from another version or from an editor. Readers skip a row that does not fit, and count it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from loadchaos.core.ledger.rows import KINDS

_LARGEST = 1 << 63
_ESSENTIAL = {"at_ns", "id", "outcome", "what", "values", "text", "facts"}
_NUMBER = frozenset({int, float})
_MISSING = object()


@dataclass(frozen=True)
class _Kind:
    """Checks of one kind of row.

    `fields` has the exact types of each field, None where its parts are checked by its hint.
    """

    required: frozenset[str]
    essential: frozenset[str]
    fields: Sequence[tuple[str, frozenset[type] | None, Any]]


def fits_its_kind(row: Mapping[str, Any]) -> bool:
    """True if a row has the essential fields of its kind with right types.

    Of an unknown kind only the tag and the time count.
    """
    return _checked(row, strict=False)


def fits_completely(row: Mapping[str, Any]) -> bool:
    """Tell whether a row also has every field that this version writes."""
    return _checked(row, strict=True)


def _checked(row: Mapping[str, Any], *, strict: bool) -> bool:
    kind, at_ns = row.get("row"), row.get("at_ns", 0)
    if type(kind) is not str:
        return False
    # A watched log may have lines without a time.
    if not (type(at_ns) is int and 0 <= at_ns < _LARGEST) and (at_ns is not None or kind != "log"):
        return False
    if kind not in KINDS:
        return True
    known = _kind(kind)
    if not (known.required if strict else known.essential) <= row.keys():
        return False
    for name, types_, hint in known.fields:
        value = row.get(name, _MISSING)
        if value is not _MISSING and (type(value) not in types_ if types_ is not None else not _fits(value, hint)):
            return False
    return True


@functools.cache
def _kind(name: str) -> _Kind:
    required: frozenset[str] = KINDS[name].__required_keys__  # type: ignore[attr-defined]  # every TypedDict has it
    fields = [(field, _exact(hint), hint) for field, hint in _hints(KINDS[name]).items()]
    return _Kind(required, required & _ESSENTIAL, fields)


def _exact(hint: Any) -> frozenset[type] | None:
    """Return the types of a field without parts; None for one with parts."""
    origin = get_origin(hint)
    if origin in (Annotated, NotRequired):
        return _exact(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        parts = [_exact(one) for one in get_args(hint)]
        return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
    if origin is Literal:
        return frozenset(type(one) for one in get_args(hint))
    if hint in (int, float):
        return _NUMBER
    return frozenset({hint}) if hint in (str, bool, type(None)) else None


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Annotated, NotRequired):
        return _fits(value, get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(one) for one in get_args(hint))
    if is_typeddict(hint):
        return isinstance(value, Mapping) and _fits_fields(value, hint)
    base = origin if isinstance(origin, type) else hint
    if not isinstance(base, type) or base is object:
        return True  # Any, and what rows do not use
    return _fits_type(value, base, get_args(hint))


def _fits_type(value: Any, base: type, inner: tuple[Any, ...]) -> bool:
    if issubclass(base, bool):
        return isinstance(value, bool)
    if issubclass(base, int | float):
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2 * _LARGEST
    if issubclass(base, str):
        return isinstance(value, str)
    if issubclass(base, type(None)):
        return value is None
    if issubclass(base, Mapping):
        return isinstance(value, Mapping) and (len(inner) < 2 or all(_fits(one, inner[1]) for one in value.values()))
    if issubclass(base, Sequence):
        return isinstance(value, list | tuple) and (not inner or all(_fits(one, inner[0]) for one in value))
    return True


def _fits_fields(value: Mapping[str, Any], kind: Any) -> bool:
    hints = _hints(kind)
    if not kind.__required_keys__ <= value.keys():
        return False
    return all(_fits(one, hints[name]) for name, one in value.items() if name in hints)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
