"""Names of files in a profile, resolved to absolute paths. A relative name is searched in the folder of the profile
first, then in the current folder. A loaded profile has absolute names, so that its run can be resumed, judged and
repeated from any folder.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadchaos.profile.source import Loc

_PAYLOAD_OPTIONS = (("requests", "file"), ("hostile_images", "folder"), ("recorded", "trace"))
"""Payload options that name a file or a folder."""


def resolve_files(data: Any, folder: Path, is_override: Callable[[Loc], object]) -> None:
    """Replace each name of an existing file in plain profile data by its absolute path. A name that came from the
    command line (`is_override` of its location) is relative to the current folder only.
    """
    for holder, loc in file_names(data):
        name = holder[loc[-1]]
        if isinstance(name, str):
            candidates = [Path(name)] if is_override(loc) else [folder / name, Path(name)]
            # Path.exists raises for a name that is too long.
            found = next((path for path in candidates if os.path.exists(path)), None)  # noqa: PTH110 - see above
            holder[loc[-1]] = name if found is None else str(found.absolute())


def file_names(data: Any) -> Iterator[tuple[dict[Any, Any], Loc]]:
    """Yield (mapping, location) of every file name in a profile. The profile need not be valid yet."""
    for key in ("ca", "tokenizer"):
        yield from _at(data, ("target", key))
    for i in _entries(data, "load"):
        yield from _traces(data["load"][i], ("load", i))
    for i in _entries(data, "traffic"):
        for payload, key in _PAYLOAD_OPTIONS:
            for holder, loc in _at(data["traffic"][i], ("payload", payload, key)):
                yield holder, ("traffic", i, *loc)


def _traces(phase: Any, loc: Loc) -> Iterator[tuple[dict[Any, Any], Loc]]:
    for key in ("trace", "replay"):
        for holder, within in _at(phase, (key,)):
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
