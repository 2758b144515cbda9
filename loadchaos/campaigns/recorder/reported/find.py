"""Find the result file of a command: what was made or changed under its folder, or under a path in its words."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from loadchaos.campaigns.recorder.reported import ReportedFigures, read_result_file

MOST_ENTRIES = 5_000
"""Files and folders that are looked at in one place."""
MOST_FILES = 50
"""Files that are read, newest first."""
_SUFFIXES = (".json", ".jsonl", ".csv")
_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__"})
_BETWEEN_PATHS = re.compile(r"""[=,;\s"']+""")


def find_result_file(
    folder: Path, words: Sequence[str], since_ns: int, *, leave_out: Path | None = None
) -> ReportedFigures | None:
    """Read the result file that a command in `folder` wrote since `since_ns` (Unix time), not in the folder `leave_out`.

    Tools write several: a summary and its parts, or a file that lacks the newest requests. The one with the most requests
    among those of the tool that wrote last counts, and the newest of these. A file that the words name and no reader
    understands gives figures of no tool.
    """
    changed = {path: ns for path in _candidates(folder, words, leave_out) if (ns := _changed_ns(path)) >= since_ns}
    newest = sorted(changed, key=changed.__getitem__, reverse=True)[:MOST_FILES]
    found = [(path, figures) for path in newest if (figures := read_result_file(path)) is not None]
    same = [(path, figures) for path, figures in found if figures.tool == found[0][1].tool]
    if not same:
        named = {folder / part for part in _parts(words)}
        unread = next((path for path in newest if path in named and path.suffix in _SUFFIXES), None)
        return None if unread is None else ReportedFigures(tool="", file=_text(unread))
    path, figures = max(same, key=lambda item: item[1].requests_sent or 0)
    return replace(figures, file=_text(path), more_files=len(found) - 1)


def _text(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _parts(words: Sequence[str]) -> set[str]:
    return {part for word in words for part in _BETWEEN_PATHS.split(word) if part}


def _candidates(folder: Path, words: Sequence[str], leave_out: Path | None) -> Iterator[Path]:
    yield from _below(folder, leave_out)
    for part in _parts(words):
        named = folder / part
        with contextlib.suppress(OSError):  # a word that is too long for a path
            if named.is_file():
                yield named
            elif named.is_dir():
                yield from _below(named, leave_out)
            elif named.parent.is_dir():  # `--csv out` of Locust writes out_stats.csv
                yield from (path for path in _entries(named.parent) if path.name.startswith(named.name))


def _below(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    """Yield result files of a folder and of those in it, up to a limit: near ones first."""
    folders, seen = [folder], 0
    while folders:
        for path in _entries(folders.pop(0)):
            seen += 1
            if seen > MOST_ENTRIES:
                return
            if path.suffix in _SUFFIXES:
                yield path
            elif _is_searched(path) and path != leave_out:
                folders.append(path)


def _is_searched(path: Path) -> bool:
    name = path.name
    return path.is_dir() and not path.is_symlink() and not name.startswith(".") and name not in _SKIPPED


def _entries(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries)
    except OSError:
        return


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns if path.is_file() else -1
    except OSError:
        return -1
