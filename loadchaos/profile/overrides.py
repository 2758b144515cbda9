"""Apply `--set load.0.users=20` to a profile before it is checked. The path has keys and list indices; the value is
YAML.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from loadchaos.core.errors import ProfileError
from loadchaos.profile.source import Loc, plain


def apply(node: Any, overrides: Sequence[str]) -> tuple[Any, dict[Loc, str]]:
    """Apply overrides to a copy of a profile; gives it, and the text of the override that set each location. `*` as an
    index means every entry that already has the key. Missing mappings on the path are created. Raises ProfileError that
    names each override that cannot be applied.
    """
    node = copy.deepcopy(node)
    origin: dict[Loc, str] = {}
    mistakes = []
    for text in overrides:
        try:
            path, value = _split(text)
            for place in _places(node, path):
                _set(node, place, value)
                origin[place] = text
        except ValueError as e:
            mistakes.append(f"--set {text}: {e}")
    if mistakes:
        raise ProfileError(mistakes)
    return node, origin


def _split(text: str) -> tuple[list[str], Any]:
    path, separator, value = text.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise ValueError("PATH=VALUE was expected, e.g. load.0.users=20")
    try:
        return keys, plain(YAML(typ="safe", pure=True).load(value))
    except YAMLError:
        quoted = f"""; quote it to make it text: --set '{path}="{value}"'""" if '"' not in value else ""
        raise ValueError(f"the value is not YAML (got {value!r}){quoted}") from None


def _places(node: Any, keys: Sequence[str], parent: Loc = ()) -> list[Loc]:
    if not keys:
        return [parent]
    key, rest = keys[0], keys[1:]
    if isinstance(node, list):
        if key == "*":
            matching = [i for i, item in enumerate(node) if _has(item, rest)]
            if not matching:
                raise ValueError(f"no entry of {'.'.join(map(str, parent))} has {'.'.join(rest)}")
            return [place for i in matching for place in _places(node[i], rest, (*parent, i))]
        if not key.isdigit():
            raise ValueError(f"{'.'.join(map(str, parent))} is a list: a number was expected (got {key!r})")
        if int(key) > len(node) or (int(key) == len(node) and rest):
            count = "1 entry" if len(node) == 1 else f"{len(node)} entries"
            raise ValueError(f"{'.'.join(map(str, parent))} has {count}, counted from 0 (got {key})")
        return _places(node[int(key)] if int(key) < len(node) else None, rest, (*parent, int(key)))
    if node is not None and not isinstance(node, dict):
        raise ValueError(f"{'.'.join(map(str, parent))} is {node!r} and has no keys")
    return _places(node.get(key) if node else None, rest, (*parent, key))


def _has(item: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(item, dict) or key not in item:
            return False
        item = item[key]
    return True


def _set(node: Any, place: Loc, value: Any) -> None:
    for key in place[:-1]:
        if isinstance(node, dict) and node.get(key) is None:
            node[key] = {}
        node = node[key]
    last = place[-1]
    if isinstance(node, list) and last == len(node):
        node.append(value)
    else:
        node[last] = value
