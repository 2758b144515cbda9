"""Read profile text into data with the line and column of each value."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from loadchaos.core.errors import ProfileError, did_you_mean

_MOST_VALUES = 100_000
Loc = tuple[int | str, ...]
Yaml: TypeAlias = "str | int | float | bool | Sequence[Yaml] | Mapping[str, Yaml] | None"
"""A value as YAML has it."""


@dataclass(frozen=True)
class Mistake:
    """One mistake at a key path. `of_key` points to the key, not to its value."""

    loc: Loc
    text: str
    of_key: bool = False


@dataclass(frozen=True)
class Document:
    """A parsed profile: ruamel's tree, which has the positions, the name of the file in messages, and the text of the
    --set that set the value at a location.
    """

    node: Any
    path: str
    overrides: Mapping[Loc, str]

    def error(self, mistakes: Sequence[Mistake]) -> ProfileError:
        """An error with all mistakes, ordered by line. Mistakes of overrides come last."""
        lines = []
        for mistake in mistakes:
            name = ".".join(map(str, mistake.loc)) or "profile"
            given = self.override_of(mistake.loc) or (self._override_below(mistake.loc) if mistake.of_key else None)
            if given is not None:
                lines.append(((1 << 30, 0), f"--set {given}: {name}: {mistake.text}"))
                continue
            line, column = self.where(mistake.loc, of_key=mistake.of_key)
            lines.append(((line, column), f"{self.path}:{line}:{column}: {name}: {mistake.text}"))
        return ProfileError(list(dict.fromkeys(text for _, text in sorted(lines))))

    def override_of(self, loc: Loc) -> str | None:
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.overrides:
                return self.overrides[loc[:length]]
        return None

    def _override_below(self, loc: Loc) -> str | None:
        return next((text for place, text in self.overrides.items() if place[: len(loc)] == loc), None)

    def where(self, loc: Loc, *, of_key: bool = False) -> tuple[int, int]:
        """Line and column from 1 of a value, or of its nearest written parent."""
        node, mark = self.node, (0, 0)
        for depth, key in enumerate(loc):
            try:
                if isinstance(node, list) and isinstance(key, int):
                    mark, node = node.lc.item(key), node[key]  # type: ignore[attr-defined]  # ruamel's lists have lc
                elif isinstance(node, dict) and key in node:
                    last = depth == len(loc) - 1
                    child = node[key]
                    at_key = (last and of_key) or isinstance(child, dict | list)
                    mark = node.lc.key(key) if at_key else node.lc.value(key)  # type: ignore[attr-defined]  # as above
                    node = child
            except (KeyError, IndexError, TypeError, AttributeError):
                break  # values of overrides and merge keys have no place of their own: use the parent's
        return mark[0] + 1, mark[1] + 1


_PROFILE = "a profile with name, traffic and load (`loadchaos init` copies examples)"


def read(path: Path, *, expected: str = _PROFILE) -> Any:
    """Parse a YAML 1.2 file into ruamel's tree. Raises ProfileError if it is not YAML, empty or not a mapping;
    `expected` is the content that the message asks for.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else f"not UTF-8 text ({e.reason})"
        raise ProfileError([f"{path}: cannot be read: {reason}"]) from None
    for number, line in enumerate(text.splitlines(), 1):
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent:
            raise ProfileError([f"{path}:{number}:{indent.index(chr(9)) + 1}: a tab; indent YAML with spaces"])
    try:
        node = YAML().load(text)
    except MarkedYAMLError as e:
        raise ProfileError([_marked(path, e)]) from None
    except (YAMLError, ValueError, RecursionError) as e:
        raise ProfileError([f"{path}:1:1: not YAML: {e}"]) from None
    _refuse_alias_bomb(path, node)
    if node is None:
        raise ProfileError([f"{path}:1:1: the file is empty: {expected} was expected"])
    if not isinstance(node, dict):
        raise ProfileError([f"{path}:1:1: {expected} was expected"])
    return node


def _refuse_alias_bomb(path: Path, root: Any) -> None:
    """Refuse a file whose aliases (`*name`) expand to too many values. Each alias is one object here, but every reader
    that copies or walks it visits it again. Raises ProfileError at the smallest value that is too large, or that
    contains itself.
    """
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: Any) -> int:
        if not isinstance(node, Mapping | list):
            return 1
        if (known := sizes.get(id(node))) is not None:
            return known
        if id(node) in open_:
            raise _bomb(path, node, "an alias stands for a value that contains it")
        open_.add(id(node))
        children = node.values() if isinstance(node, Mapping) else node
        sizes[id(node)] = total = 1 + sum(map(size, children))
        open_.discard(id(node))
        if total > _MOST_VALUES:
            raise _bomb(path, node, f"aliases make more than {_MOST_VALUES} values of it")
        return total

    size(root)


def _bomb(path: Path, node: Any, why: str) -> ProfileError:
    return ProfileError([f"{path}:{node.lc.line + 1}:{node.lc.col + 1}: {why}; write out the values you need"])


def _marked(path: Path, error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    at = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
    problem = str(error.problem or error.context)
    what = "" if "duplicate key" in problem else "not YAML: "
    return f"{path}:{at}: {what}{problem.splitlines()[0]}"


def plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {(str(k) if isinstance(k, str) else k): plain(v) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [plain(v) for v in node]
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def yaml_text(data: Yaml, *, flow: bool | None = None, width: int = 120) -> str:
    """Data in JSON form as YAML, in the order of its keys. `flow` puts all in braces, None only the innermost."""
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = flow
    yaml.width = width
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel types this attribute as None
    yaml.dump(data, out)
    return out.getvalue()


def from_pydantic(raised: ValidationError, model: type[BaseModel], prefix: Loc = ()) -> list[Mistake]:
    """Convert pydantic's errors into mistakes, with a hint for unknown keys."""
    found = []
    for error in raised.errors(include_url=False):
        loc = (
            *prefix,
            *(k for k in error["loc"] if not (isinstance(k, str) and k.startswith(("function-", "tuple[")))),
        )
        kind, got = error["type"], error["input"]
        text = str(error["msg"]).removeprefix("Value error, ")
        if kind == "extra_forbidden":
            under_target = _UNDER_TARGET.get(str(loc[-1])) if loc[:-1] == ("target",) else None
            hint = f"; {under_target}" if under_target else near(str(loc[-1]), _keys_at(model, error["loc"][:-1]))
            found.append(Mistake(loc, f"unknown key{hint}", of_key=True))
            continue
        if kind == "too_short" and got:
            continue  # it only repeats that an entry is wrong, which is a mistake of its own
        if kind == "missing":
            found.append(Mistake(loc, "is missing"))
            continue
        if kind == "string_pattern_mismatch":
            text = f"{_form(model, error)} was expected"
        elif kind in _EXPECTED:
            text = f"{_EXPECTED[kind]} was expected"
        text = text if "(got " in text else f"{_reworded(text)}{_given(kind, got)}"
        found.append(Mistake(loc, text + (_meant(str(got), text) if kind == "literal_error" else "")))
    return found


_OPTIONS = {
    **dict.fromkeys(("url", "base_url", "host"), "--target URL"),
    **dict.fromkeys(("api_key", "api_key_env", "key"), "--api-key-env VAR"),
    "admin_url": "--admin-url URL",
    "model": "--model NAME",
    "header": "--header NAME=env:VAR",
    "headers": "--header NAME=env:VAR",
    **dict.fromkeys(("log", "logs", "server_log"), "--server-log SOURCE"),
}
"""Keys that one would look for under `target`, as they differ from server to server: options of `loadchaos run`."""
_UNDER_TARGET = {
    **{key: f"it is an option: {option}" for key, option in _OPTIONS.items()},
    "toxiproxy": "it was removed: leave it out, and the built-in proxy lays the same network faults",
}
"""Advice for keys under `target` that were removed or have another place."""


def _meant(got: str, text: str) -> str:
    return did_you_mean(got, re.findall(r"'([^']+)'", text.partition(" (got ")[0]))


_EXPECTED = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list such as [a, b]"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "a mapping such as {key: value}"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("date_type", "date_from_datetime_parsing", "date_parsing"), "a date such as 2027-06-30"),
    "string_type": "text",
    "string_too_short": "some text",
    "too_short": "at least one entry",
}
"""pydantic's error types in words of YAML, which has neither tuples nor models."""


def _form(model: type[BaseModel], error: ErrorDetails) -> str:
    _, field = _at(model, error["loc"])
    return (field.description if field is not None else None) or f"the form {error['ctx']['pattern']}"


def _given(kind: str, got: object) -> str:
    if not isinstance(got, dict | list | tuple | BaseModel):
        return f" (got {got!r})"
    if kind not in _EXPECTED or not got:
        return ""
    return f" (got {'a mapping' if isinstance(got, dict) else 'a list'})"


def _reworded(text: str) -> str:
    return text.replace("Input should be ", "must be ").replace("greater than or equal to", "at least")


def near(word: str, known: Sequence[str]) -> str:
    """Hint for an unknown word: the nearest known word, or all of them."""
    return did_you_mean(word, known, f"; known are {', '.join(sorted(known))}" if known else "")


def _keys_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    current, _ = _at(model, loc)
    return [f.alias or n for n, f in current.model_fields.items()] if current is not None else []


def _at(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The model at a location (None: another kind of value) and the field that holds it."""
    current: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for key in loc:
        if isinstance(key, int) or current is None:
            continue
        found = next((f for n, f in current.model_fields.items() if key in (n, f.alias)), None)
        if found is not None:
            field, current = found, _model_in(found.annotation)
    return current, field


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for m in map(_model_in, get_args(annotation)) if m is not None), None)
