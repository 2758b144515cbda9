"""Error texts in the user's own prompts, as server logs quote them: there they look like failures. Each passage begins
with the newline or quote before its line, as repr and JSON write them: the server's own lines never hold it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from loadchaos.analysis.classify import signature_file
from loadchaos.analysis.classify.python_stack import HEADER
from loadchaos.core.foreign_json import strings
from loadchaos.load.payloads import PAYLOADS
from loadchaos.profile.files import file_names
from loadchaos.profile.json_lines import read_bytes, suffix_of
from loadchaos.profile.profile import Profile
from loadchaos.server.dialects import any_server

_MOST_BYTES = 16 << 20
"""Searched of each file: about 2 s."""
_MOST_PASSAGES = 500
_SHORTEST = 20
"""Shorter strings of a profile are names."""
_BEFORE, _AFTER = 200, 40
"""Characters. A passage begins with its line or after 200 characters, which no line of a server has."""
_SUFFIXES = (".json", ".jsonl", ".txt", ".yaml", ".yml")


def error_passages(profile: Profile) -> list[str]:
    """Passages with error texts in the prompts of a profile. The files that it names are searched, too."""
    data = profile.model_dump(mode="json")
    texts: list[Iterator[str]] = [strings(data.get("traffic"))]
    texts += [
        _texts_of(Path(holder[loc[-1]]))
        for holder, loc in file_names(data, PAYLOADS)
        if isinstance(holder[loc[-1]], str)
    ]
    found: dict[str, None] = {}
    for text in (text for some in texts for text in some if len(text) >= _SHORTEST):
        found.update(dict.fromkeys(passages(text)))
        if len(found) >= _MOST_PASSAGES:
            break
    return list(found)[:_MOST_PASSAGES]


def passages(text: str) -> Iterator[str]:
    signatures = signature_file.load()
    dead = any_server(lambda d: (*d.engine_dead, *d.log_dead))
    for number, line in enumerate(text.split("\n")):
        hits = [hit for _, hit in signatures.scan(line)] if signatures.may_match(line) else []
        hits += [hit for pattern in dead if (hit := pattern.search(line)) is not None]
        spans = [hit.span() for hit in hits]
        if HEADER in line:
            spans.append((line.index(HEADER), line.index(HEADER) + len(HEADER)))
        for begin, end in spans:
            openings = ("",) if begin > _BEFORE else ("\\n",) if number else ("'", '"', '\\"')
            quoted = _escaped(line[max(0, begin - _BEFORE) : end + _AFTER])
            yield from (opening + form for opening in openings for form in quoted)


def _escaped(text: str) -> set[str]:
    in_json = json.dumps(text)[1:-1]
    return {repr(text)[1:-1], in_json, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(in_json)[1:-1]}


def _texts_of(path: Path) -> Iterator[str]:
    """All strings of a file with requests; its lines where it is no JSON."""
    if (suffix := suffix_of(path)) not in _SUFFIXES or not path.is_file():
        return
    try:
        content = read_bytes(path, _MOST_BYTES).decode("utf-8-sig", "replace")
    except OSError:
        return  # the payload that needs it gives the error
    for text in content.splitlines() if suffix == ".jsonl" else [content]:
        try:
            yield from strings(json.loads(text))
        except (ValueError, RecursionError):
            yield text
