"""Select the decisive lines of a log, without repeated lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadchaos.analysis.classify.python_stack import HEADER
from loadchaos.report.formatting import clean_line, number

DECISIVE_BEFORE, DECISIVE_AFTER = 120, 25
_WITHOUT_TRACEBACK = 12
_INTRO = 2  # lines before a traceback that say which process logged it
_MOST_SIMILAR = 3  # lines in a row that differ in numbers only: so many are shown
_BATCH = ("Dumping scheduler output", "Dumping input data")
_NUMBER = re.compile(r"\d+")
_LONG = 400
_LONG_BATCH = 1_500


def decisive(before: Sequence[str], line: str, after: Sequence[str], *, traceback: bool) -> list[str]:
    heads = [n for n, text in enumerate(before) if HEADER in text] if traceback else []
    shown = before[max(0, heads[-1] - _INTRO) :] if heads else before[-_WITHOUT_TRACEBACK:]
    end = next((n for n, text in enumerate(after) if HEADER in text), len(after))
    lines = [text for text in (*shown, line, *after[:end]) if not _is_batch(text)]
    return [clean_line(text, _LONG) for text in _without_repeats(lines)]


def batch(lines: Sequence[str]) -> list[str]:
    """Lines of the batch that vLLM dumps when its engine crashes: the best start for a reproducer."""
    return [clean_line(text, _LONG_BATCH) for text in lines if _is_batch(text)]


def _is_batch(text: str) -> bool:
    return any(marker in text for marker in _BATCH)


def _without_repeats(lines: Sequence[str]) -> list[str]:
    found: list[str] = []
    like, alike = "", 0
    for text in lines:
        shape = _NUMBER.sub("", text)
        if shape != like:
            found += _left_out(alike)
            like, alike = shape, 0
        alike += 1
        if alike <= _MOST_SIMILAR:
            found.append(text)
    return found + _left_out(alike)


def _left_out(alike: int) -> list[str]:
    return [f"... {number(alike - _MOST_SIMILAR)} more lines like these"] if alike > _MOST_SIMILAR else []
