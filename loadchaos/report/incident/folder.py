"""incidents/NNN-<id>/: one incident as a folder, with a page ready to paste into an upstream issue.

Everything in it comes from the ledger and was redacted before it got there; nothing is asked of the server. Writing the
same incident again gives the same folder, and an incident that got its name later moves to the folder of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.incident.log_excerpt import LINES_AFTER as LINES_AFTER_IT
from loadchaos.report.incident.log_excerpt import LINES_BEFORE as LINES_BEFORE_IT
from loadchaos.report.incident.log_excerpt import batch, decisive
from loadchaos.report.incident.page import Told, page
from loadchaos.report.words import clean, clean_line

LINES_BEFORE, LINES_AFTER, _MOST_LINES = 200, 100, 2000
MOST_INCIDENTS = 200
"""Folders a run gets: a server in a crash loop is told by its first deaths, and verdict.json has them all."""
FILES = frozenset({"incident.json", "incident.md", "server.log.excerpt", "requests.jsonl"})
"""What this module writes; anything else in such a folder was put there by another hand and is never removed."""


def write(folder: RunFolder, incident: Mapping[str, Any], requests: Sequence[Mapping[str, Any]] | None = None) -> Path:
    """Make or renew the folder of one incident (shape: incident.json as the judge gives it). Returns the folder.

    `requests` tells of each request that was out where its body is kept (shape: bodies.store), None where none were.
    Each file is replaced whole, so that a reader never sees half of one.
    """
    home = folder_of(folder, incident)
    excerpts = [_excerpt(folder, name, first, last) for name, first, last in _windows(incident)]
    _put(home / "incident.json", orjson.dumps(incident, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
    if excerpts:
        _put(home / "server.log.excerpt", b"\n".join(excerpts))
    if requests is not None:
        _put(home / "requests.jsonl", b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in requests))
    around = _around(folder, incident)
    lines = decisive(*around, traceback=bool(incident.get("frames")))
    told = Told(lines, batch((*around[0], *around[2])), _profile(folder), _earlier(folder, home, incident))
    _put(home / "incident.md", page(incident, told, requests or ()).encode())
    return home


def _profile(folder: RunFolder) -> list[str]:
    """The profile as resolved."""
    try:
        return [clean_line(line, 300) for line in folder.profile.read_text("utf-8").splitlines()]
    except OSError:  # a run that was refused before it came to that
        return []


def _earlier(folder: RunFolder, home: Path, incident: Mapping[str, Any]) -> list[str]:
    """The folders of earlier incidents of this run with the same name."""
    same = sorted(p.name for p in folder.incidents.glob(f"*-{home.name.split('-', 1)[1]}") if p.is_dir())
    return [name for name in same if name[:3].isdigit() and int(name.split("-", 1)[0]) < int(incident["n"])]


def folder_of(folder: RunFolder, incident: Mapping[str, Any]) -> Path:
    """`incidents/003-encoder_cache_miss`, made if need be; an earlier name of the same number is moved there."""
    n, name = int(incident["n"]), re.sub(r"[^A-Za-z0-9_.-]", "_", str(incident.get("id") or "incident"))[:80]
    home = folder.incidents / f"{n:03d}-{name.lstrip('.')}"
    folder.incidents.mkdir(exist_ok=True)
    if not home.exists():
        earlier = sorted(folder.incidents.glob(f"{n:03d}-*"))
        if earlier:
            earlier[0].rename(home)
    home.mkdir(exist_ok=True)
    return home


def remove_others(folder: RunFolder, kept: Sequence[Path]) -> None:
    """Remove incident folders that the final judgement does not know; one with foreign files in it stays."""
    for home in sorted(folder.incidents.glob("[0-9][0-9][0-9]-*")):
        if home in kept or not home.is_dir() or {p.name for p in home.iterdir()} - FILES:
            continue
        for part in home.iterdir():
            part.unlink()
        home.rmdir()


def _put(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)


# -- the log around it ---------------------------------------------------------------------------------------------


def _log_path(folder: RunFolder, name: str) -> Path | None:
    """The log a row's `file` names: the keeper's, or one under watch/logs; never a path out of the run folder."""
    for path in (folder.server_log, *sorted((folder.watch / "logs").glob("*.log"))):
        if str(path.relative_to(folder.path)) == name:
            return path
    return None


def _windows(incident: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(file, first line, last line) of what belongs to it: the judge's window, and the evidence's own line."""
    windows: dict[str, list[int]] = {}
    for file, w in (incident.get("log_lines") or {}).items():
        windows[str(file)] = [int(w["first"]), int(w["last"])]
    evidence = incident.get("evidence") or {}
    if isinstance(evidence.get("line"), int) and evidence.get("source"):
        w2 = windows.setdefault(str(evidence["source"]), [evidence["line"], evidence["line"]])
        w2[0], w2[1] = min(w2[0], evidence["line"]), max(w2[1], evidence["line"])
    return [(file, w[0], w[1]) for file, w in sorted(windows.items())]


def _lines(path: Path, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as log:
        for n, line in enumerate(log, 1):
            if n > last:
                return
            if n >= first:
                yield n, line.rstrip(b"\r\n")


def _excerpt(folder: RunFolder, name: str, first: int, last: int) -> bytes:
    """The lines around it as they lie in the log, under a line that says which they are."""
    path = _log_path(folder, name)
    if path is None:
        return f"# {clean(name, 80)} is not in this run folder\n".encode()
    begin, end = max(1, first - LINES_BEFORE), min(last + LINES_AFTER, first + _MOST_LINES)
    found = list(_lines(path, begin, end)) if path.exists() else []
    told = f"lines {begin} to {found[-1][0]}" if found else "nothing of it is left"
    return b"\n".join([f"# {name}, {told}".encode(), *(line for _, line in found)]) + b"\n"


def _around(folder: RunFolder, incident: Mapping[str, Any]) -> tuple[list[str], str, list[str]]:
    """The evidence's own line with those before and after it; a text alone where it is no line of a log."""
    evidence = incident.get("evidence") or {}
    path, line = _log_path(folder, str(evidence.get("source"))), evidence.get("line")
    if path is None or not path.exists() or not isinstance(line, int):
        return [], str(evidence.get("text") or ""), []
    found = {
        n: text.decode("utf-8", "replace")
        for n, text in _lines(path, max(1, line - LINES_BEFORE_IT), line + LINES_AFTER_IT)
    }
    before, after = [t for n, t in found.items() if n < line], [t for n, t in found.items() if n > line]
    return before, found.get(line, ""), after
