"""Frozen dataclasses as JSON: their fields are its keys, their annotations its schema. `to_json` writes one,
`from_json` reads it without ever raising an error, and `schema` describes it. `Annotated` adds to the schema: a text is
the description, `Keywords` are further ones. Metadata of a field say when its key is absent.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

IF_SET: Final[Mapping[str, tuple[object, ...]]] = {"absent": (None, False, "", (), {})}
"""Metadata: the key is absent while the value is None, False or empty."""
IF_KNOWN: Final[Mapping[str, tuple[object, ...]]] = {"absent": (None,)}
"""Metadata: the key is absent while the value is None."""
_WRONG: Final = object()
_UNIONS = (Union, types.UnionType)
_LISTS = (tuple, Sequence)
_SCALARS: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class Keywords:
    """Keywords of JSON Schema for a part of an annotation."""

    def __init__(self, **keywords: object) -> None:
        self.keywords = keywords


def only_with(name: str) -> Mapping[str, str]:
    """Metadata: the key is absent without that of the field `name`."""
    return {"only_with": name}


def if_missing(value: object) -> Mapping[str, object]:
    """Metadata: what `from_json` takes for a missing value. The key is required all the same."""
    return {"missing": value}


def key(name: str) -> Mapping[str, str]:
    """Metadata: the key is `name`, which is no name in Python."""
    return {"key": name}


# -- write ---------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to dicts and lists, the keys in the order of the fields."""
    if is_dataclass(value):
        return {_key(f): to_json(getattr(value, f.name)) for f in fields(value) if _is_present(value, f)}
    if isinstance(value, Mapping):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return value


def _key(f: Field[Any]) -> str:
    return str(f.metadata.get("key", f.name))


def _is_present(whole: Any, f: Field[Any]) -> bool:
    if other := f.metadata.get("only_with"):
        return getattr(whole, other) is not None
    return not any(getattr(whole, f.name) == absent for absent in f.metadata.get("absent", ()))


# -- read ----------------------------------------------------------------------------------------------------------


def from_json(cls: type[T], data: object) -> T:
    """Read a dataclass from JSON of this or another version. Unknown keys are ignored. A value of a wrong type counts
    as missing, and so does a number that is not finite; of a list or mapping only such items are left out. What is
    missing has the default of its field, else "", 0, False, None, an empty collection or the first value of a Literal.
    A Literal takes any text: a later version may know more values.
    """
    given: Mapping[object, object] = data if isinstance(data, Mapping) else {}
    found: dict[str, Any] = {}
    for name, json_key, kind, missing in _plan(cast("Hashable", cls)):
        value = _read(kind, given[json_key]) if json_key in given else _WRONG
        if value is not _WRONG:
            found[name] = value
        elif missing is not None:
            found[name] = missing()
    return cls(**found)


@cache
def _plan(cls: Hashable) -> tuple[tuple[str, str, Any, Callable[[], Any] | None], ...]:
    kind = cast("type[Any]", cls)
    hints = get_type_hints(kind)
    return tuple(
        (f.name, _key(f), hints[f.name], _missing(f, hints[f.name]) if _is_required(f) else None) for f in fields(kind)
    )


def _is_required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _missing(f: Field[Any], kind: Any) -> Callable[[], Any]:
    return (lambda: f.metadata["missing"]) if "missing" in f.metadata else _empty(kind)


def _empty(kind: Any) -> Callable[[], Any]:
    origin = get_origin(kind)
    if origin is Literal:
        return lambda: "unknown" if "unknown" in get_args(kind) else get_args(kind)[0]
    if origin in _UNIONS or kind is Any:
        return lambda: None
    if is_dataclass(kind):
        return lambda: from_json(cast("type[Any]", kind), {})
    if origin in _LISTS:
        return tuple
    return cast("Callable[[], Any]", kind if origin is None else dict)


def _read(kind: Any, value: object) -> Any:
    origin = get_origin(kind)
    if origin in _UNIONS:
        return next((found for arm in get_args(kind) if (found := _read(arm, value)) is not _WRONG), _WRONG)
    if origin is Literal:
        return value if type(value) is type(get_args(kind)[0]) else _WRONG
    if origin in _LISTS:
        return _read_list(get_args(kind), value)
    if origin is not None:
        item = get_args(kind)[1]
        if not isinstance(value, Mapping):
            return _WRONG
        return {k: v for k, x in value.items() if isinstance(k, str) and (v := _read(item, x)) is not _WRONG}
    return _read_plain(kind, value)


def _read_list(items: tuple[Any, ...], value: object) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return _WRONG
    if _is_fixed(items):
        found = tuple(map(_read, items, value))
        return found if len(items) == len(value) and _WRONG not in found else _WRONG
    return tuple(v for x in value if (v := _read(items[0], x)) is not _WRONG)


def _is_fixed(items: tuple[Any, ...]) -> bool:
    """True for the items of `tuple[str, int]`, which has one of each."""
    return len(items) > 1 and items[1] is not Ellipsis


def _read_plain(kind: Any, value: object) -> Any:
    if kind is Any:
        return value
    if kind is type(None):
        return None if value is None else _WRONG
    if is_dataclass(kind):
        if isinstance(value, str) and (of_text := getattr(kind, "of_text", None)) is not None:
            return of_text(value)
        return from_json(cast("type[Any]", kind), value) if isinstance(value, Mapping) else _WRONG
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return _WRONG
        return value if kind is float or isinstance(value, int) else int(value) if value.is_integer() else _WRONG
    return value if isinstance(value, kind) else _WRONG


# -- describe ------------------------------------------------------------------------------------------------------

Schema = dict[str, Any]


def schema(cls: type[Any]) -> Schema:
    """JSON Schema (2020-12) of a dataclass and of all that it holds, in `$defs`."""
    parts: dict[str, Schema] = {}
    whole = _object(cls, parts)
    return {**whole, "$defs": dict(sorted(parts.items()))}


def document(cls: type[Any], file: str, title: str, description: str) -> str:
    """The schema of a class as the text of schemas/`file`."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://loadchaos.dev/schemas/{file}",
        "title": f"{file}: {title}",
        "description": f"Readers ignore keys they do not know. {description}",
    }
    return json.dumps({**head, **schema(cls)}, indent=1) + "\n"


def _object(cls: type[Any], parts: dict[str, Schema]) -> Schema:
    hints = get_type_hints(cls, include_extras=True)
    return {
        "type": "object",
        "properties": {_key(f): _schema(hints[f.name], parts) for f in fields(cls)},
        "required": [_key(f) for f in fields(cls) if _is_required(f)],
    }


def _schema(kind: Any, parts: dict[str, Schema]) -> Schema:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        found = _schema(args[0], parts)
        for extra in args[1:]:
            found |= extra.keywords if isinstance(extra, Keywords) else {"description": extra}
        return found
    if origin in _UNIONS:
        return _any_of([_schema(arm, parts) for arm in args])
    if origin is Literal:
        return {"enum": list(args)}
    if origin in _LISTS:
        if _is_fixed(args):
            items = [_schema(arg, parts) for arg in args]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "items": _schema(args[0], parts)}
    if origin is not None:
        names = {} if args[0] is str else {"propertyNames": _schema(args[0], parts)}
        return {"type": "object", **names, "additionalProperties": _schema(args[1], parts)}
    if is_dataclass(kind):
        name = cast("type[Any]", kind).__name__
        if name not in parts:
            parts[name] = {}  # it may hold itself
            parts[name] = _object(cast("type[Any]", kind), parts)
        one: Schema = {"$ref": f"#/$defs/{name}"}
        return {"anyOf": [one, {"type": "string"}]} if hasattr(kind, "of_text") else one
    return {} if kind is Any else {"type": _SCALARS[kind]}


def _any_of(arms: Sequence[Schema]) -> Schema:
    """One of several; plain types together are a list of types, and values one list of them."""
    if all(set(arm) <= {"enum", "type"} for arm in arms):
        if values := [value for arm in arms for value in arm.get("enum", ())]:
            return {"enum": [*values, *([None] if {"type": "null"} in arms else [])]}
        return {"type": [arm["type"] for arm in arms]}
    return {"anyOf": list(arms)}
