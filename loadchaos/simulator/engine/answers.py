"""Text of the answers: common words, one per token. The same prompt and seed give the same text. Prompts with one right
answer get it (orders.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.orders import ordered_answer
from loadchaos.simulator.engine.types import TokenFault

# Plain ASCII words: they need no escaping in JSON, so a streamed chunk is put together from ready bytes.
_WORDS = tuple(word for word in tokenizer.WORDS if len(word) > 1)
_COUNT = len(_WORDS)


def ordered_opening(ids: Sequence[int], pictures: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the tokens of the answer that the prompt orders, if any. Such an answer ends behind them. `pictures` are
    the numbers or colours in its images.
    """
    return tuple(tokenizer.encode(ordered_answer(ids, pictures)))


class AnswerText:
    """An endless text that is read token by token. `opening` are the tokens it begins with."""

    __slots__ = ("_first", "_opening", "_right_tokens", "_spoils", "_state", "seed")

    def __init__(self, seed: int, opening: tuple[int, ...] = ()) -> None:
        self.seed = seed
        self._opening = opening
        self._right_tokens: int | None = None
        self._state = (seed ^ 0x5DEECE66D) & 0x7FFFFFFF
        self._first = True
        self._spoils: list[tuple[TokenFault, int]] = []

    def next_text(self, tokens: int) -> str:
        """Return the next `tokens` tokens as text. The first word of all has no blank before it."""
        if self._spoils:
            return self._spoiled_text(tokens)
        if self._right_tokens is not None:
            return self._derailed_text(self._right_tokens, tokens)
        if self._opening:
            return self._opening_text(tokens)
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

    def spoil(self, fault: TokenFault, after: int) -> None:
        self._spoils.append((fault, after - sum(n + 1 for _, n in self._spoils)))

    def _spoiled_text(self, tokens: int) -> str:
        fault, right = self._spoils.pop(0)
        if tokens <= right:
            later, self._spoils = self._spoils, []
            text = self.next_text(tokens)
            self._spoils = [(fault, right - tokens), *later]
            return text
        later, self._spoils = self._spoils, []
        text = self.next_text(right) if right else ""
        token = self.next_text(1)
        text += "" if fault == "lost" else token * 2
        self._spoils = later
        return text + (self.next_text(tokens - right - 1) if tokens > right + 1 else "")

    def derail(self, after: int) -> None:
        """Continue with wrong text after so many more tokens. A model does so when its context is lost."""
        self._right_tokens = after

    def _derailed_text(self, right_tokens: int, tokens: int) -> str:
        self._right_tokens = None
        if tokens <= right_tokens:
            text, self._right_tokens = self.next_text(tokens), right_tokens - tokens
            return text
        text = self.next_text(right_tokens) if right_tokens else ""
        self._opening = ()
        self._state ^= 0x2545F491
        return text + self.next_text(tokens - right_tokens)

    def _opening_text(self, tokens: int) -> str:
        ids, self._opening = self._opening[:tokens], self._opening[tokens:]
        self._first = False
        rest = tokens - len(ids)
        return tokenizer.decode(ids) + (self.next_text(rest) if rest else "")
