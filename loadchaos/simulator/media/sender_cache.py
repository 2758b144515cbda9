"""The API server's side of the two-sided processor cache. It sends only the hash of an image that the engine should
have.
"""

from __future__ import annotations

from collections import OrderedDict


class SenderCache:
    """The last `items` images by hash, in the order they were sent. The engine's side does the same on receipt."""

    def __init__(self, items: int) -> None:
        self._items = items
        self._held: OrderedDict[str, None] = OrderedDict()
        self.queries = 0
        self.hits = 0

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._held

    def must_send(self, mm_hash: str) -> bool:
        """Return True if the image itself has to be sent. Returns False when the engine should still have it."""
        self.queries += 1
        if mm_hash in self._held:
            self.hits += 1
            self._held.move_to_end(mm_hash)
            return False
        if self._items:
            self._held[mm_hash] = None
            if len(self._held) > self._items:
                self._held.popitem(last=False)
        return True

    def clear(self) -> None:
        self._held.clear()
