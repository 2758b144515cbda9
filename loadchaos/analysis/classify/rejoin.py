"""Rejoin the lines of a log file that a collector or a terminal cut.

The head of a file shows whether a terminal wrapped it, so that ordinary logs pass unchanged. A log that is followed has no
head: there, only what a collector cut is joined (core/whole_lines.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from loadchaos.analysis.classify.prefixes import begins_record
from loadchaos.core.whole_lines import LONGEST_CHARS, LineJoiner, WholeLine

_HEAD_LINES = 2_000
_WIDTHS = range(40, 512)
_FULL_LINES = 3
_BEGIN = 6


def rejoin(lines: Iterable[str]) -> Iterator[WholeLine]:
    rest = iter(lines)
    head = list(islice(rest, _HEAD_LINES))
    joiner, line_no = LineJoiner(), 1
    width = _width(head)
    raw = chain(head, rest)
    for count, line in _unwrapped(raw, width) if width else ((1, line) for line in raw):
        yield from joiner.feed(line, line_no, raw_lines=count)
        line_no += count
    yield from joiner.flush()


def _width(head: list[str]) -> int:
    """Terminal width, 0 without wrapping. No line is longer, several are full and continue in the next."""
    lengths = Counter(len(line) for line in head)
    width = max(lengths, default=0)
    if width not in _WIDTHS or lengths[width] < _FULL_LINES:
        return 0
    full = [n for n, line in enumerate(head[:-1]) if len(line) == width]
    # Lines of one form (an access log) begin alike; the rest of a line that was wrapped does not.
    continued = sum(not begins_record(head[n + 1]) and head[n + 1][:_BEGIN] != head[n][:_BEGIN] for n in full)
    return width if continued >= _FULL_LINES and 2 * continued >= len(full) else 0


def _unwrapped(lines: Iterable[str], width: int) -> Iterator[tuple[int, str]]:
    count, text, full = 0, "", False
    for line in lines:
        if count and not (full and line and not begins_record(line) and len(text) < LONGEST_CHARS):
            yield count, text
            count, text = 0, ""
        count, text, full = count + 1, text + line, len(line) == width
    if count:
        yield count, text
