"""Detect another request's nonce in an answer (answers mixed up)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

_MIN_NONCE_CHARS = 24
"""A shorter nonce could be in an answer by chance."""
_RECENT = 128
_CANARY = re.compile(r"\bcanary-\d{10}\b")
"""The canary's word (server/monitor/canary.py); no prompt of the load contains one."""
_SEARCHED_CHARS = 4000
_CANARY_CHARS = 17


class NonceHistory:
    """Nonces of the last prompts.

    It covers all requests in flight unless there are more than `_RECENT`.
    """

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._shortest = _SEARCHED_CHARS

    def checker(self, own: str) -> Callable[[str], str | None]:
        """Remember a nonce.

        Returns the check of its answer, which finds a foreign nonce or None.
        """
        if len(own) >= _MIN_NONCE_CHARS:
            self._recent.append(own)
            self._shortest = min(self._shortest, len(own))

        def foreign(text: str) -> str | None:
            if len(text) < _CANARY_CHARS:
                return None
            opening = text[:_SEARCHED_CHARS]
            if (canary := _CANARY.search(opening)) is not None and canary[0] not in own:
                return canary[0]
            if len(opening) < self._shortest:
                return None
            return next((n for n in self._recent if n in opening and n != own), None)

        return foreign
