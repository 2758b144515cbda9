"""vLLM's two-sided cache of processed images. The API server sends only the hash of an image that the engine should have."""

from __future__ import annotations

from collections import OrderedDict


class ProcessorCache:
    """One side: the last `items` images by hash. Both sides do the same in the same order, so they hold the same.
    Without `refresh_on_hit`, a planted difference, a hit does not make an image newer.
    """

    def __init__(self, items: int, *, refresh_on_hit: bool = True) -> None:
        self._items = items
        self._refresh_on_hit = refresh_on_hit
        self._held: OrderedDict[str, None] = OrderedDict()
        self.queries = 0
        self.hits = 0

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._held

    def look_up(self, mm_hash: str, *, keep: bool = True) -> bool:
        """Return True if an image is held. With `keep` it is held from now on."""
        self.queries += 1
        if mm_hash in self._held:
            self.hits += 1
            if self._refresh_on_hit:
                self._held.move_to_end(mm_hash)
            return True
        if self._items and keep:
            self._held[mm_hash] = None
            if len(self._held) > self._items:
                self._held.popitem(last=False)
        return False

    def clear(self) -> None:
        self._held.clear()
