"""Write incidents/NNN-<id>/: the evidence of one incident, with a page (incident.md) to paste into an upstream issue.
All content comes from the ledger, which is redacted. Writing an incident again gives the same folder. An incident whose
id became known later moves to the folder of that id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.typed_json import to_json
from loadchaos.core.whole_file import write_json, write_whole
from loadchaos.report.formatting import clean, clean_line
from loadchaos.report.incident.decisive_lines import DECISIVE_AFTER, DECISIVE_BEFORE, batch, decisive
from loadchaos.report.incident.page import IncidentView, page

_EXCERPT_BEFORE, _EXCERPT_AFTER, _MOST_EXCERPT_LINES = 200, 100, 2000
MOST_INCIDENTS = 200
"""Folders a run gets at most: the first deaths describe a crash loop, and verdict.json has them all."""
FILES = frozenset({"incident.json", "incident.md", "server.log.excerpt", "requests.jsonl"})
"""Files this module writes. Any other file in such a folder is somebody else's and is never removed."""


def write(folder: RunFolder, incident: IncidentRecord, requests: Sequence[Mapping[str, object]] | None = None) -> Path:
    """Write or update the folder of an incident. `requests`: where the body of each one in flight is stored."""
    home = folder_of(folder, incident)
    excerpts = [_excerpt(folder, name, first, last) for name, first, last in _windows(incident)]
    write_json(home / "incident.json", to_json(incident))
    if excerpts:
        write_whole(home / "server.log.excerpt", b"\n".join(excerpts))
    if requests is not None:
        write_whole(
            home / "requests.jsonl", b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in requests)
        )
    around = _around(folder, incident)
    lines = decisive(*around, traceback=bool(incident.frames))
    view = IncidentView(lines, batch((*around[0], *around[2])), _profile(folder), _earlier(folder, home, incident))
    write_whole(home / "incident.md", page(incident, view, requests or ()).encode())
    return home


def _profile(folder: RunFolder) -> list[str]:
    try:
        return [clean_line(line, 300) for line in folder.profile.read_text("utf-8").splitlines()]
    except OSError:  # a run that was refused before it came to that
        return []


def _earlier(folder: RunFolder, home: Path, incident: IncidentRecord) -> list[str]:
    same = sorted(p.name for p in folder.incidents.glob(f"*-{home.name.split('-', 1)[1]}") if p.is_dir())
    return [name for name in same if name[:3].isdigit() and int(name.split("-", 1)[0]) < incident.n]


def folder_of(folder: RunFolder, incident: IncidentRecord) -> Path:
    """Create the folder `incidents/003-<id>`. A folder with the same number and an earlier id is renamed."""
    n, name = incident.n, re.sub(r"[^A-Za-z0-9_.-]", "_", incident.id or "incident")[:80]
    home = folder.incidents / f"{n:03d}-{name.lstrip('.')}"
    folder.incidents.mkdir(exist_ok=True)
    if not home.exists():
        earlier = sorted(folder.incidents.glob(f"{n:03d}-*"))
        if earlier:
            earlier[0].rename(home)
    home.mkdir(exist_ok=True)
    return home


def remove_others(folder: RunFolder, kept: Sequence[Path]) -> None:
    """Remove incident folders that the final verdict does not have. A folder with foreign files stays."""
    for home in sorted(folder.incidents.glob("[0-9][0-9][0-9]-*")):
        if home in kept or not home.is_dir() or {p.name for p in home.iterdir()} - FILES:
            continue
        for part in home.iterdir():
            part.unlink()
        home.rmdir()


# -- log excerpt ---------------------------------------------------------------------------------------------


def _log_path(folder: RunFolder, name: str) -> Path | None:
    """Find the log that a row names, inside the run folder only."""
    for path in (folder.server_log, *sorted((folder.watch / "logs").glob("*.log"))):
        if str(path.relative_to(folder.path)) == name:
            return path
    return None


def _windows(incident: IncidentRecord) -> list[tuple[str, int, int]]:
    """(file, first line, last line) of the log parts: the judge's window and the evidence line."""
    windows = {file: [w.first, w.last] for file, w in incident.log_lines.items()}
    source, line = incident.evidence.source, incident.evidence.line
    if line is not None and source:
        window = windows.setdefault(source, [line, line])
        window[0], window[1] = min(window[0], line), max(window[1], line)
    return [(file, w[0], w[1]) for file, w in sorted(windows.items())]


def _lines(path: Path, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as log:
        for n, line in enumerate(log, 1):
            if n > last:
                return
            if n >= first:
                yield n, line.rstrip(b"\r\n")


def _excerpt(folder: RunFolder, name: str, first: int, last: int) -> bytes:
    path = _log_path(folder, name)
    if path is None:
        return f"# {clean(name, 80)} is not in this run folder\n".encode()
    begin, end = max(1, first - _EXCERPT_BEFORE), min(last + _EXCERPT_AFTER, first + _MOST_EXCERPT_LINES)
    found = list(_lines(path, begin, end)) if path.exists() else []
    where = f"lines {begin} to {found[-1][0]}" if found else "its lines are gone"
    return b"\n".join([f"# {name}, {where}".encode(), *(line for _, line in found)]) + b"\n"


def _around(folder: RunFolder, incident: IncidentRecord) -> tuple[list[str], str, list[str]]:
    """The evidence line with the lines before and after it; its text alone if it is not from a log."""
    evidence, line = incident.evidence, incident.evidence.line
    path = _log_path(folder, evidence.source or "")
    if path is None or not path.exists() or line is None:
        return [], evidence.text or "", []
    found = {
        n: text.decode("utf-8", "replace")
        for n, text in _lines(path, max(1, line - DECISIVE_BEFORE), line + DECISIVE_AFTER)
    }
    before, after = [t for n, t in found.items() if n < line], [t for n, t in found.items() if n > line]
    return before, found.get(line, ""), after
