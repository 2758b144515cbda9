"""Text of the answers: common words, one per token. The same prompt and seed give the same text. Prompts with one right
answer get it (orders.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.guided import Guided
from loadchaos.simulator.engine.orders import ordered_answer
from loadchaos.simulator.engine.types import Spoil

# Plain ASCII words: they need no escaping in JSON, so a streamed chunk is put together from ready bytes.
_WORDS = tuple(word for word in tokenizer.WORDS if len(word) > 1)
_COUNT = len(_WORDS)


def opening_of(ids: Sequence[int], pictures: Sequence[str], guided: Guided | None) -> tuple[int, ...]:
    """Return the tokens that an answer begins with, and ends behind: those of its grammar, or those that are ordered."""
    return ordered_opening(ids, pictures) if guided is None else tuple(tokenizer.encode(guided.text))


def ordered_opening(ids: Sequence[int], pictures: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the tokens of the answer that the prompt orders, if any. Such an answer ends behind them. `pictures` are
    the numbers or colours in its images.
    """
    return tuple(tokenizer.encode(ordered_answer(ids, pictures)))


class AnswerText:
    """An endless text that is read token by token. `opening` are the tokens it begins with."""

    __slots__ = ("_derailed", "_faults", "_first", "_opening", "_state", "seed")

    def __init__(self, seed: int, opening: tuple[int, ...] = ()) -> None:
        self.seed = seed
        self._opening = opening
        self._state = (seed ^ 0x5DEECE66D) & 0x7FFFFFFF
        self._first = True
        self._derailed = False
        self._faults: list[tuple[Spoil, int]] = []  # each with the tokens before it, from the one before on

    def spoil(self, fault: Spoil, after: int) -> None:
        """Lose or repeat the token behind the next `after` ones, or continue with wrong text from there on
        (`derailed`, once), as a model does when its context is lost.
        """
        if fault == "derailed":
            if self._derailed:
                return
            self._derailed = True
        before = sum(n + (earlier != "derailed") for earlier, n in self._faults)
        self._faults.append((fault, max(0, after - before)))

    def next_text(self, tokens: int) -> str:
        """Return the next `tokens` tokens as text. The first word of all has no blank before it."""
        text = ""
        while self._faults and tokens > self._faults[0][1]:
            fault, right = self._faults.pop(0)
            text += self._right_text(right)
            tokens -= right
            if fault == "derailed":
                self._opening = ()
                self._state ^= 0x2545F491
            else:
                token = self._right_text(1)
                text += "" if fault == "lost" else token * 2
                tokens -= 1
        if self._faults:
            self._faults[0] = (self._faults[0][0], self._faults[0][1] - tokens)
        return text + self._right_text(tokens)

    def _right_text(self, tokens: int) -> str:
        if not tokens:
            return ""
        if self._opening:
            ids, self._opening = self._opening[:tokens], self._opening[tokens:]
            self._first = False
            return tokenizer.decode(ids) + self._right_text(tokens - len(ids))
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
