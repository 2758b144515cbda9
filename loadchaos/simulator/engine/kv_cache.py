"""KV cache: a fixed pool of blocks, shared by prefix, evicted by LRU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """A pool of `blocks` blocks of `block_size` tokens. A block is free, or held by one or more requests, never both. A
    free block may still carry the hash of its part of a prompt, and `match` finds it until it is allocated. With
    `caching` off nothing is found.
    """

    def __init__(self, blocks: int, block_size: int, *, caching: bool) -> None:
        self.size = blocks
        self.block_size = block_size
        self._caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))  # oldest first
        self._refs = [0] * blocks
        self._hash_of: list[int | None] = [None] * blocks
        self._by_hash: dict[int, int] = {}
        self.freed_in_use: set[int] = set()  # blocks that a defect released although a request holds them

    @property
    def usage(self) -> float:
        """Share of blocks held by requests, 0 to 1. Cached prefixes without a request count as free, as vLLM counts."""
        return 1.0 - len(self._free) / self.size

    def match(self, hashes: Sequence[int], most: int) -> list[int]:
        """Return the blocks of the longest known prefix of `hashes`. At most `most` of them. No block is taken yet."""
        found: list[int] = []
        if not self._caching:
            return found
        for wanted in hashes[:most]:
            block = self._by_hash.get(wanted)
            if block is None:
                break
            found.append(block)
        return found

    def room_beside(self, matched: Sequence[int]) -> int:
        return len(self._free) - sum(1 for block in matched if not self._refs[block])

    def share(self, matched: Sequence[int]) -> None:
        for block in matched:
            if not self._refs[block]:
                del self._free[block]
            self._refs[block] += 1

    def free_shared(self, blocks: Sequence[int]) -> None:
        self.freed_in_use.update(block for block in blocks if self._refs[block] > 1)

    def allocate(self, count: int) -> list[int] | None:
        """Return `count` free blocks, or None when there are not so many. The prefixes they held are forgotten."""
        if count > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._forget(block)
            self._refs[block] = 1
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Release one hold on each block. The tail of a prompt becomes free before its head, so heads live longer."""
        for block in reversed(blocks):
            if self._refs[block] <= 0:
                raise RuntimeError(f"block {block} was freed twice")  # our own bug, not one of the imitated server
            self._refs[block] -= 1
            if not self._refs[block]:
                self._free[block] = None

    def remember(self, block: int, prefix_hash: int) -> None:
        """Note that a full block holds this part of a prompt. The first block to hold a prefix keeps its hash."""
        if self._caching and self._hash_of[block] is None and prefix_hash not in self._by_hash:
            self._hash_of[block] = prefix_hash
            self._by_hash[prefix_hash] = block

    def forget_prefixes(self) -> bool:
        """Drop every cached prefix. Returns False, and does nothing, while a request holds blocks (as vLLM answers)."""
        if len(self._free) != self.size:
            return False
        self._hash_of = [None] * self.size
        self._by_hash.clear()
        return True

    def _forget(self, block: int) -> None:
        known = self._hash_of[block]
        if known is not None:
            del self._by_hash[known]
            self._hash_of[block] = None
