"""Signs of life of work that takes long: a line on the terminal now and then, and nothing where nobody watches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

EVERY_S = 2.0
_LOOK = 1024
_STDERR = 2
Say = Callable[[str], None]
Row = TypeVar("Row")


def on_terminal(say: Say | None = None) -> Say | None:
    """`say` (a line on stderr otherwise) where stderr is a terminal; None where it is a pipe or a file."""
    try:
        return (say or _line) if os.isatty(_STDERR) else None
    except OSError:  # it is closed
        return None


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def rows(every: Iterable[Row], what: str, say: Say | None) -> Iterator[Row]:
    """The same rows; meanwhile `what` is said with how many there were, at most every two seconds."""
    if say is None:
        yield from every
        return
    begin = said = time.monotonic()
    for n, row in enumerate(every):
        if not n % _LOOK and (now := time.monotonic()) - said > EVERY_S:
            said = now
            say(f"{what}: {n:,} rows so far, {now - begin:.0f} s")
        yield row
