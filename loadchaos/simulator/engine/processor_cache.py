"""The engine's side of the two-sided processor cache. It must hold all that the API server's side believes it holds."""

from __future__ import annotations

from collections import OrderedDict

from loadchaos.simulator.engine.types import MMItem


class ExpectedCachedItemError(Exception):
    """The API server sent only a hash, and the item is not here. The text is vLLM's."""


class ReceiverCache:
    """The last `items` images by hash. Both sides do the same in the same order, so they hold the same.
    `refresh_on_hit` off is a planted difference between the sides: see defects/mm_cache_desync.py.
    """

    def __init__(self, items: int, *, refresh_on_hit: bool = True) -> None:
        self._items = items
        self._refresh_on_hit = refresh_on_hit
        self._held: OrderedDict[str, None] = OrderedDict()
        self.queries = 0
        self.hits = 0

    def receive(self, item: MMItem) -> None:
        """Accept one image of a request. Raises ExpectedCachedItemError when only its hash came and the hash is
        unknown.
        """
        self.queries += 1
        if item.hash in self._held:
            self.hits += 1
            if self._refresh_on_hit:
                self._held.move_to_end(item.hash)
            return
        if not item.data:
            raise ExpectedCachedItemError(f"Expected a cached item for mm_hash={item.hash!r}")
        if self._items:
            self._held[item.hash] = None
            if len(self._held) > self._items:
                self._held.popitem(last=False)

    def clear(self) -> None:
        self._held.clear()
