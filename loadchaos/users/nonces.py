"""Knows the words that only one prompt has, and finds another request's in an answer: somebody else's data came back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_SHORTEST_CHARS = 24
"""A shorter opening could be in an answer by chance."""
_RECENT = 128
_LOOKED_AT_CHARS = 4000


class Nonces:
    """The last `_RECENT` prompts' openings; what is in flight is among them unless more are in flight than that."""

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=_RECENT)

    def check_for(self, own: str) -> Callable[[str], str | None]:
        """Remember this prompt's opening; gives the check of its answer: another prompt's opening, or None."""
        if len(own) >= _SHORTEST_CHARS:
            self._recent.append(own)

        def foreign(text: str) -> str | None:
            if len(text) < _SHORTEST_CHARS:
                return None
            seen = text[:_LOOKED_AT_CHARS]
            return next((n for n in self._recent if n in seen and n != own), None)

        return foreign
