"""Make texts of a recorded length, where a trace has lengths and ids of blocks but no texts."""

from __future__ import annotations

from collections.abc import Sequence

_WORDS = ("time", "house", "river", "paper", "light", "music", "table", "image", "night", "work", "good", "old")
_MIX, _BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


def made_text(tokens: int, blocks: Sequence[int], number: int, block_tokens: int = 512) -> str:
    """Make a text of so many words. It begins with a part for each block: equal ids give equal words, and other ids other
    words within the first 18. What is left is that of this `number`.
    """
    words: list[str] = []
    for block in blocks:
        words += _block(block, min(block_tokens, tokens - len(words)))
    return " ".join(words + _block(-1 - number, tokens - len(words)))


def _block(block: int, tokens: int) -> list[str]:
    mixed = (block * _MIX) & _BITS  # an odd factor: another number for each block
    found = []
    for place in range(tokens):
        digits, digit = divmod(mixed, len(_WORDS))
        found.append(_WORDS[digit])
        mixed = digits or (block * _MIX + place * 7 + 1) & _BITS
    return found
