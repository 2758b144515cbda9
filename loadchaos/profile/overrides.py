"""`--set load.0.users=20`: change a profile before it is judged. A path of keys and list indices, a value in YAML."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from loadchaos.core.errors import ProfileError
from loadchaos.profile.source import Loc, plain


def apply(node: Any, overrides: Sequence[str]) -> tuple[Any, dict[Loc, str]]:
    """A changed copy, and which override set which place. `*` as an index: every entry that has the key already.

    Mappings that are missing on the way are made. Raises ProfileError naming each override that cannot be applied.
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
        quoted = f"""; as text it goes in quotes: --set '{path}="{value}"'""" if '"' not in value else ""
        raise ValueError(f"the value is not YAML (got {value!r}){quoted}") from None


def _places(node: Any, keys: Sequence[str], done: Loc = ()) -> list[Loc]:
    """Every place a path means, with indices as numbers."""
    if not keys:
        return [done]
    key, rest = keys[0], keys[1:]
    if isinstance(node, list):
        if key == "*":
            fitting = [i for i, item in enumerate(node) if _has(item, rest)]
            if not fitting:
                raise ValueError(f"no entry of {'.'.join(map(str, done))} has {'.'.join(rest)}")
            return [place for i in fitting for place in _places(node[i], rest, (*done, i))]
        if not key.isdigit():
            raise ValueError(f"{'.'.join(map(str, done))} is a list: a number was expected (got {key!r})")
        if int(key) > len(node) or (int(key) == len(node) and rest):
            raise ValueError(f"{'.'.join(map(str, done))} has {len(node)} entries, counted from 0 (got {key})")
        return _places(node[int(key)] if int(key) < len(node) else None, rest, (*done, int(key)))
    if node is not None and not isinstance(node, dict):
        raise ValueError(f"{'.'.join(map(str, done))} is {node!r} and holds nothing")
    return _places(node.get(key) if node else None, rest, (*done, key))


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
