"""Knows the words that only one prompt has, and finds another request's in an answer: somebody else's data came back."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

_SHORTEST_CHARS = 24
"""A shorter opening could be in an answer by chance."""
_RECENT = 128
_CANARY = re.compile(r"\bcanary-\d{10}\b")
"""What `watch/canary.py` has the model repeat: no prompt of the load holds such a word."""
_LOOKED_AT_CHARS = 4000
_CANARY_CHARS = 17


class Nonces:
    """The last `_RECENT` prompts' openings; what is in flight is among them unless more are in flight than that."""

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._shortest = _LOOKED_AT_CHARS

    def check_for(self, own: str) -> Callable[[str], str | None]:
        """Remember this prompt's opening; gives the check of its answer: another prompt's opening, or None."""
        if len(own) >= _SHORTEST_CHARS:
            self._recent.append(own)
            self._shortest = min(self._shortest, len(own))

        def foreign(text: str) -> str | None:
            if len(text) < _CANARY_CHARS:
                return None
            seen = text[:_LOOKED_AT_CHARS]
            if (canary := _CANARY.search(seen)) is not None and canary[0] not in own:
                return canary[0]
            if len(seen) < self._shortest:
                return None
            return next((n for n in self._recent if n in seen and n != own), None)

        return foreign
