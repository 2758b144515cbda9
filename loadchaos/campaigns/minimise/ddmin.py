"""Delta debugging (Zeller and Hildebrandt, TSE 28, 2002)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


async def ddmin(items: Sequence[Item], fails: Callable[[Sequence[Item]], Awaitable[bool]]) -> list[Item]:
    """Find a minimal part of `items` that still fails. No single item of the part can be left out. `items` as a whole
    is known to fail. With a test that errs, the result still fails, but may be larger.
    """
    kept, pieces = list(items), 2
    while len(kept) >= 2:
        size = -(-len(kept) // pieces)
        parts = [kept[i : i + size] for i in range(0, len(kept), size)]
        for number, part in enumerate(parts):
            if len(parts) > 2 and await fails(part):
                kept, pieces = part, 2
                break
            rest = [item for n, other in enumerate(parts) if n != number for item in other]
            if rest and await fails(rest):
                kept, pieces = rest, max(2, pieces - 1)
                break
        else:
            if pieces >= len(kept):
                break
            pieces = min(len(kept), pieces * 2)
    return kept


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
