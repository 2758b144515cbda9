"""The scheduler's account of the encoder cache. It knows the images whose embeddings the runner holds, their readers,
and the entries that may be evicted.
"""

from __future__ import annotations

from collections import OrderedDict

from loadchaos.simulator.engine.types import MMItem


class EncoderCache:
    """Entries by image hash, with sizes in encoder tokens. An entry without readers stays until its space is needed.
    `size` None grows with the largest item seen (never below `at_least`), as vLLM sizes it from the model's largest.
    """

    def __init__(self, size: int | None, at_least: int) -> None:
        self._grows = size is None
        self.size = at_least if size is None else size
        self.used = 0
        self._tokens: dict[str, int] = {}
        self._readers: dict[str, set[str]] = {}
        self._unread: OrderedDict[str, int] = OrderedDict()
        self.unread_tokens = 0
        self._evicted: list[str] = []

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._tokens

    def grow_for(self, item: MMItem) -> bool:
        """Return True if an item can ever be held. The cache grows for it where no size was given."""
        if item.tokens > self.size and self._grows:
            self.size = item.tokens
        return item.tokens <= self.size

    def has_reader(self, mm_hash: str, request_id: str) -> bool:
        return request_id in self._readers.get(mm_hash, ())

    def unread_size(self, mm_hash: str) -> int:
        return self._unread.get(mm_hash, 0)

    def room_for(self, tokens: int, pinned: int) -> bool:
        """Return True if `tokens` more fit. Entries without readers may be evicted, except `pinned` tokens of them."""
        return tokens <= self.size - self.used + self.unread_tokens - pinned

    def hold(self, item: MMItem, request_id: str) -> bool:
        """Make the request a reader of an item. Returns True when the item has to be encoded. Call `room_for` before."""
        if item.hash in self._tokens:
            self._readers[item.hash].add(request_id)
            self.unread_tokens -= self._unread.pop(item.hash, 0)
            return False
        while self.used + item.tokens > self.size:
            oldest, tokens = self._unread.popitem(last=False)
            self.unread_tokens -= tokens
            self.used -= tokens
            del self._tokens[oldest], self._readers[oldest]
            self._evicted.append(oldest)
        self._tokens[item.hash] = item.tokens
        self._readers[item.hash] = {request_id}
        self.used += item.tokens
        return True

    def release(self, mm_hash: str, request_id: str) -> None:
        readers = self._readers.get(mm_hash)
        if readers is None or request_id not in readers:
            return
        readers.discard(request_id)
        if not readers:
            self._unread[mm_hash] = self._tokens[mm_hash]
            self.unread_tokens += self._tokens[mm_hash]

    def pop_evicted(self) -> list[str]:
        """Return the hashes evicted since the last call. The runner must forget them. Those encoded again meanwhile are
        left out.
        """
        evicted = [h for h in self._evicted if h not in self._tokens]
        self._evicted.clear()
        return evicted

    def reset(self) -> None:
        self._tokens.clear()
        self._readers.clear()
        self._unread.clear()
        self._evicted.clear()
        self.used = self.unread_tokens = 0
