"""Find a minimal part of some items that still fails, as delta debugging does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


async def leave_out(
    items: Sequence[Item],
    fails: Callable[[Sequence[Item], Sequence[Item]], Awaitable[bool]],
    first: int = 0,
    most_in_vain: int | None = None,
) -> list[Item]:
    """Leave out blocks of items, then single ones, until none can be left out. `fails` gets the items that are kept and
    those that are left out; `first` is the size of the first blocks, else a quarter. The result has been tested without
    each single item, unless `most_in_vain` tests in a row found nothing to leave out.
    """
    kept, size, in_vain = list(items), first or max(1, len(items) // 4), 0
    while True:
        removed, begin = False, 0
        while begin < len(kept):
            block, rest = kept[begin : begin + size], kept[:begin] + kept[begin + size :]
            if await fails(rest, block):
                kept, removed, in_vain = rest, True, 0
            else:
                begin, in_vain = begin + size, in_vain + 1
                if in_vain == most_in_vain:
                    return kept
        if size == 1 and not removed:
            return kept
        size = max(1, size // 2)
