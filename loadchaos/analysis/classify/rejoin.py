"""Rejoin log lines that container runtimes or terminals split.

The head of a log shows which of these it needs, so that ordinary logs pass unchanged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from loadchaos.analysis.classify.prefixes import begins_record

_HEAD_LINES = 2_000
_LONGEST = 1 << 20
_CRI = re.compile(r"\S+ (?:stdout|stderr) (?P<part>[PF]) ")
_BLOB = re.compile(r'\{.*"MESSAGE" ?: ?\[')  # journald writes a text with colours in it as a list of bytes
_WIDTHS = range(40, 512)
_FULL_LINES = 3


def rejoin(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Whole lines, each with the number of raw lines it was made of."""
    rest = iter(lines)
    head = list(islice(rest, _HEAD_LINES))
    raw: Iterator[str] = chain(head, rest)
    if any(_BLOB.match(line) for line in head):
        raw = (_text(line) for line in raw)
    if any(found["part"] == "P" for line in head if (found := _CRI.match(line)) is not None):
        return _without_parts(raw)
    width = _width(head)
    return _unwrapped(raw, width) if width else ((1, line) for line in raw)


def _text(line: str) -> str:
    """A journald record with its message as text."""
    try:
        record = json.loads(line)
        record["MESSAGE"] = bytes(record["MESSAGE"]).decode("utf-8", "replace")
    except (ValueError, TypeError, KeyError, RecursionError):  # no such record
        return line
    return json.dumps(record)


def _without_parts(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Join partial records of the kubelet.

    A record over 16 kB comes in parts, `P` until the last, `F`. One part is open per stream.
    """
    open_: dict[str, tuple[int, str]] = {}
    for line in lines:
        found = _CRI.match(line)
        if found is None:
            yield 1, line
            continue
        stream = line.split(" ", 2)[1]
        count, before = open_.pop(stream, (0, ""))
        text = before + line[found.end() :] if before else line
        if found["part"] == "P" and len(text) < _LONGEST:
            open_[stream] = (count + 1, text)
        else:
            yield count + 1, text
    yield from open_.values()


def _width(head: list[str]) -> int:
    """Terminal width, 0 without wrapping.

    No line is longer, several are full and continue in the next.
    """
    lengths = Counter(len(line) for line in head)
    width = max(lengths, default=0)
    if width not in _WIDTHS or lengths[width] < _FULL_LINES:
        return 0
    full = [n for n, line in enumerate(head[:-1]) if len(line) == width]
    continued = sum(not begins_record(head[n + 1]) for n in full)
    return width if continued >= _FULL_LINES and 2 * continued >= len(full) else 0


def _unwrapped(lines: Iterable[str], width: int) -> Iterator[tuple[int, str]]:
    count, text, full = 0, "", False
    for line in lines:
        if count and not (full and line and not begins_record(line) and len(text) < _LONGEST):
            yield count, text
            count, text = 0, ""
        count, text, full = count + 1, text + line, len(line) == width
    if count:
        yield count, text
