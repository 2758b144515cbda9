"""Check a row from a file against its kind (rows.py). A ledger may come from another version or from an editor. Readers
skip a row that does not fit, and count it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from loadchaos.core.histogram import bucket
from loadchaos.core.ledger.rows import KINDS

_LARGEST = 1 << 63
_MOST_SHAPES = 4096
_ESSENTIAL = {"at_ns", "id", "outcome", "what", "values", "text", "facts"}
_NUMBER = frozenset({int, float})
_BUCKETS = frozenset(key for n in range(bucket(_LARGEST) + 1) for key in (n, str(n)))
"""Keys of histograms, the only mappings of numbers; those of JSON are texts."""
_Fits = Callable[[Any], bool]
_Part = tuple[str, _Fits]


@dataclass(frozen=True)
class _Kind:
    """Checks of one kind of row. `fields` has the exact types of each field, None where its parts are checked, and that
    check.
    """

    required: frozenset[str]
    essential: frozenset[str]
    fields: Sequence[tuple[str, frozenset[type] | None, _Fits]]


_shapes: dict[tuple[str, bool, tuple[str, ...], tuple[type, ...]], Sequence[_Part]] = {}
"""Shapes of rows that fit, with the fields whose parts must still be checked in each row.

A shape is the kind, the strictness, the names of the fields and the types of their values. The rows of a run have few.
"""


def fits_its_kind(row: Mapping[str, object]) -> bool:
    """True if a row has the essential fields of its kind with right types. Of an unknown kind only the tag and the time
    count.
    """
    return _checked(row, strict=False)


def fits_completely(row: Mapping[str, object]) -> bool:
    return _checked(row, strict=True) and all(_is_number(v) for v in row.values() if type(v) in _NUMBER)


def _checked(row: Mapping[str, object], *, strict: bool) -> bool:
    kind, at_ns = row.get("row"), row.get("at_ns", 0)
    if type(kind) is not str:
        return False
    # A watched log may have lines without a time.
    if not (type(at_ns) is int and 0 <= at_ns < _LARGEST) and (at_ns is not None or kind != "log"):
        return False
    shape = (kind, strict, tuple(row), tuple(map(type, row.values())))
    parts = _shapes.get(shape)
    if parts is None:
        if kind not in KINDS:
            return True
        if (parts := _parts_to_check(row, _kind(kind), strict=strict)) is None:
            return False
        if len(_shapes) < _MOST_SHAPES:
            _shapes[shape] = parts
    for name, fits in parts:  # noqa: SIM110  # faster than all(): it is the work of every row
        if not fits(row[name]):
            return False
    return True


def _parts_to_check(row: Mapping[str, object], known: _Kind, *, strict: bool) -> Sequence[_Part] | None:
    if not (known.required if strict else known.essential) <= row.keys():
        return None
    parts: list[_Part] = []
    for name, types_, fits in known.fields:
        if name not in row:
            continue
        if types_ is None:
            parts.append((name, fits))
        elif type(row[name]) not in types_:
            return None
    return parts


@functools.cache
def _kind(name: str) -> _Kind:
    required: frozenset[str] = KINDS[name].__required_keys__  # type: ignore[attr-defined]  # every TypedDict has it
    fields = [(field, _exact(hint), _check(hint)) for field, hint in _hints(KINDS[name]).items()]
    return _Kind(required, required & _ESSENTIAL, fields)


def _exact(hint: Any) -> frozenset[type] | None:
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


def _check(hint: Any) -> _Fits:
    origin = get_origin(hint)
    if origin in (Annotated, NotRequired):
        return _check(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return _either(*map(_check, get_args(hint)))
    if origin is Literal:
        of = frozenset(type(one) for one in get_args(hint))
        return lambda value: type(value) in of
    if is_typeddict(hint):
        return lambda value: isinstance(value, Mapping) and _fits_fields(value, hint)
    base = origin if isinstance(origin, type) else hint
    if not isinstance(base, type) or base is object:
        return _fits_always  # Any, and what rows do not use
    return _check_of_type(base, get_args(hint))


def _either(first: _Fits, *others: _Fits) -> _Fits:
    if not others:
        return first
    rest = _either(*others)
    return lambda value: first(value) or rest(value)


def _check_of_type(base: type, inner: tuple[Any, ...]) -> _Fits:
    if issubclass(base, bool):
        return lambda value: isinstance(value, bool)
    if issubclass(base, int | float):
        return _is_number
    if issubclass(base, str):
        return lambda value: isinstance(value, str)
    if issubclass(base, type(None)):
        return lambda value: value is None
    if issubclass(base, Mapping):
        of_values = _check_of_all(inner[1]) if len(inner) > 1 else _fits_always
        if inner and inner[0] is int:
            return lambda value: isinstance(value, Mapping) and value.keys() <= _BUCKETS and of_values(value.values())
        return lambda value: (type(value) is dict or isinstance(value, Mapping)) and of_values(value.values())
    if issubclass(base, Sequence):
        of_items = _check_of_all(inner[0]) if inner else _fits_always
        return lambda value: isinstance(value, (list, tuple)) and of_items(value)
    return _fits_always


def _check_of_all(hint: Any) -> _Fits:
    """Make the check of several values of a type. Values of the exact types need no call each: the gaps of an answer
    are many.
    """
    fits, exact = _check(hint), _exact(hint)
    if fits is _fits_always:
        return _fits_always

    def fit_all(values: Collection[Any]) -> bool:
        kinds = set(map(type, values))
        if exact is None or not kinds <= exact:
            return all(map(fits, values))
        return kinds.isdisjoint(_NUMBER) or (kinds <= _NUMBER and _are_in_range(values)) or all(map(fits, values))

    return fit_all


def _are_in_range(numbers: Collection[Any]) -> bool:
    return bool(min(numbers) > -2 * _LARGEST and max(numbers) < 2 * _LARGEST)


def _fits_always(_value: Any) -> bool:
    return True


def _is_number(value: Any) -> bool:
    if type(value) is int:  # nearly every one
        return -2 * _LARGEST < value < 2 * _LARGEST
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2 * _LARGEST


def _fits_fields(value: Mapping[str, object], kind: Any) -> bool:
    checks = _checks(kind)
    if not kind.__required_keys__ <= value.keys():
        return False
    return all(checks[name](one) for name, one in value.items() if name in checks)


@functools.cache
def _checks(kind: Any) -> dict[str, _Fits]:
    return {name: _check(hint) for name, hint in _hints(kind).items()}


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
