"""Compare written rows with the types declared in core/ledger/rows.py."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from loadchaos.core.ledger import rows


def problems(row: Mapping[str, Any]) -> list[str]:
    """List undeclared fields, missing fields and wrong types of one row."""
    kind = rows.KINDS.get(str(row.get("row")))
    if kind is None:
        return [f"{row.get('row')}: no such kind of row"]
    declared = {one.name: one for one in rows.fields_of(kind)}
    name = row["row"]
    found = [f"{name}.{key}: not declared" for key in row if key not in declared and key != "row"]
    found += [f"{name}.{one.name}: missing" for one in declared.values() if one.required and one.name not in row]
    found += [
        f"{name}.{key}: {value!r} is not {declared[key].type}"
        for key, value in row.items()
        if key in declared and not matches(value, declared[key].type)
    ]
    return found


def matches(value: Any, hint: Any) -> bool:
    """Check a JSON value against a type; an int counts as a float."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin is Annotated:
        return matches(value, args[0])
    if origin in (Union, UnionType):
        return any(matches(value, arg) for arg in args)
    if origin is Literal:
        return value in args
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(matches(v, args[1]) for v in value.values())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, list) and all(matches(v, args[0]) for v in value)
    if is_typeddict(hint):
        keys = get_type_hints(hint)
        return hint.__required_keys__ <= value.keys() <= keys.keys() and all(
            matches(v, keys[k]) for k, v in value.items()
        )
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)
