"""Names of files in a profile, resolved to absolute paths. A relative name is searched in the folder of the profile
first, then in the current folder. A loaded profile has absolute names, so that its run can be resumed, judged and
repeated from any folder.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loadchaos.profile.request_options import PayloadOptions
from loadchaos.profile.source import Loc

Payloads = Mapping[str, type[PayloadOptions]]


def resolve_files(data: Any, payloads: Payloads, folder: Path, is_override: Callable[[Loc], object]) -> None:
    """Replace each name of an existing file in plain profile data by its absolute path. A name that came from the
    command line (`is_override` of its location) is relative to the current folder only.
    """
    for holder, loc in file_names(data, payloads):
        name = holder[loc[-1]]
        if isinstance(name, str):
            candidates = [Path(name)] if is_override(loc) else [folder / name, Path(name)]
            # Path.exists raises for a name that is too long.
            found = next((path for path in candidates if os.path.exists(path)), None)  # noqa: PTH110 - see above
            holder[loc[-1]] = name if found is None else str(found.absolute())


def file_names(data: Any, payloads: Payloads) -> Iterator[tuple[dict[Any, Any], Loc]]:
    """Yield (mapping, location) of every file name in a profile. The profile need not be valid yet."""
    for key in ("ca", "tokenizer"):
        yield from _at(data, ("target", key))
    phases: tuple[str, ...] = ("load", "*")
    while True:
        for key in ("trace", "replay"):
            yield from _at(data, (*phases, key))
        if not any(_at(data, (*phases, "phases"))):
            break
        phases = (*phases, "phases", "*")
    for name, payload in payloads.items():
        if payload.file_option:
            yield from _at(data, ("traffic", "*", "payload", name, payload.file_option))


def _at(node: Any, keys: tuple[str, ...], loc: Loc = ()) -> Iterator[tuple[dict[Any, Any], Loc]]:
    """Yield the mappings that have the last key of a path; `*` stands for every entry of a list."""
    key, *rest = keys
    if key == "*":
        for i, entry in enumerate(node if isinstance(node, list) else ()):
            yield from _at(entry, tuple(rest), (*loc, i))
    elif isinstance(node, dict) and key in node:
        yield from _at(node[key], tuple(rest), (*loc, key)) if rest else [(node, (*loc, key))]
