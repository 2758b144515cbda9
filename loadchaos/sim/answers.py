"""What the embedded model says: common words, one a token, the same for the same prompt and seed."""

from __future__ import annotations

from loadchaos.sim import tokenizer

# Plain ASCII words: they need no escaping in JSON, so a streamed chunk is put together from ready bytes.
_WORDS = tuple(word for word in tokenizer.WORDS if len(word) > 1)
_COUNT = len(_WORDS)


class Answer:
    """An endless text; `take(n)` gives the next n tokens of it."""

    __slots__ = ("_first", "_state", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._state = (seed ^ 0x5DEECE66D) & 0x7FFFFFFF
        self._first = True

    def take(self, tokens: int) -> str:
        """The next `tokens` tokens as text; the first word of all has no blank before it."""
        words = []
        state = self._state
        for _ in range(tokens):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            words.append(_WORDS[(state >> 8) % _COUNT])
        self._state = state
        text = " ".join(words)
        if self._first:
            self._first = False
            return text
        return f" {text}"
