"""Progress lines for long work, on a terminal only."""

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
    """Return `say`, or print to stderr, if stderr is a terminal; else None."""
    try:
        return (say or _line) if os.isatty(_STDERR) else None
    except OSError:  # it is closed
        return None


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def rows(every: Iterable[Row], what: str, say: Say | None) -> Iterator[Row]:
    """Pass rows through and print a count every two seconds at most. `what` is the work, for example `judging`; nothing
    is printed without `say`.
    """
    if say is None:
        yield from every
        return
    begin = printed_s = time.monotonic()
    for n, row in enumerate(every):
        if not n % _LOOK and (now := time.monotonic()) - printed_s > EVERY_S:
            printed_s = now
            say(f"{what}: {n:,} rows so far, {now - begin:.0f} s")
        yield row
