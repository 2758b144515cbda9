"""Tokens per event of the answers, to show received tokens per second."""

from __future__ import annotations

from loadchaos.core.ledger.rows import EndRow


class EventTokens:
    """Mean number of tokens in an event of an answer. It is that of the answers whose tokens the server counted.
    Heartbeats count events, because the tokens of a stream are known only at its end. With speculative decoding an
    event of a stream has several tokens; a whole answer is one event, whatever its length.
    """

    __slots__ = ("_events", "_tokens")

    def __init__(self) -> None:
        self._events = self._tokens = 0

    def on_end(self, row: EndRow) -> None:
        tokens = row.get("completion_tokens")
        if not isinstance(tokens, int):
            return
        self._tokens += tokens
        self._events += int(row.get("chunks") or 0) or int(row.get("outcome") == "ok")

    @property
    def mean(self) -> float:
        """Tokens per event; 1 while no answer was counted."""
        return self._tokens / self._events if self._events else 1.0
