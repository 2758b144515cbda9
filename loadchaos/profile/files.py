"""Files that a profile names: a relative name is looked for beside the profile first, then in the current folder.

A profile that was read has them by their whole path: its run is gone on with, judged and repeated from other folders.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadchaos.profile.source import Loc

_OPTIONS = (("requests", "file"), ("hostile_images", "folder"))
"""Options of payloads that name a file or a folder."""


def find(data: Any, folder: Path, is_override: Callable[[Loc], object]) -> None:
    """Change each name of a file that is there to its whole path; one from the command line is meant as seen from here."""
    for holder, loc in named(data):
        name = holder[loc[-1]]
        if isinstance(name, str):
            places = [Path(name)] if is_override(loc) else [folder / name, Path(name)]
            # Path.exists raises for a name that is too long.
            there = next((place for place in places if os.path.exists(place)), None)  # noqa: PTH110 - see above
            holder[loc[-1]] = name if there is None else str(there.absolute())


def named(data: Any) -> Iterator[tuple[dict[Any, Any], Loc]]:
    """(mapping, place) of every name of a file, in whatever a profile not judged yet may be."""
    for key in ("ca", "tokenizer"):
        yield from _at(data, ("target", key))
    for i in _entries(data, "load"):
        yield from _traces(data["load"][i], ("load", i))
    for i in _entries(data, "traffic"):
        for payload, key in _OPTIONS:
            for holder, loc in _at(data["traffic"][i], ("payload", payload, key)):
                yield holder, ("traffic", i, *loc)


def _traces(phase: Any, loc: Loc) -> Iterator[tuple[dict[Any, Any], Loc]]:
    for holder, within in _at(phase, ("trace",)):
        yield holder, (*loc, *within)
    for i in _entries(phase, "phases"):
        yield from _traces(phase["phases"][i], (*loc, "phases", i))


def _entries(data: Any, key: str) -> range:
    entries = data.get(key) if isinstance(data, dict) else None
    return range(len(entries) if isinstance(entries, list) else 0)


def _at(data: Any, keys: tuple[str, ...]) -> Iterator[tuple[dict[Any, Any], Loc]]:
    holder = data
    for key in keys[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else None
    if isinstance(holder, dict) and keys[-1] in holder:
        yield holder, keys
