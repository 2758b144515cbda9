"""Secret words: words at the start of a prompt that name its request.

The code is keyed with the seed of the run, so that every worker can read the secret word of a request of any other
worker. It has 60 bits: 40 name the owner (a request, or all turns of a conversation), 20 check it. It is written in words
of measured cost, so that the prompt's length stays exact. A marker of three words follows it: a search for the marker
finds it, and prompts differ from their first word on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence

from loadchaos.core import rng as draws

_OWNER_BITS, _CHECK_BITS = 40, 20
_CODE_BITS = _OWNER_BITS + _CHECK_BITS
_MASK = (1 << _CODE_BITS) - 1
_CHECK_MASK = (1 << _CHECK_BITS) - 1
_CONVERSATION = 1 << (_OWNER_BITS - 1)
_FACTOR = 0xBF58476D1CE4E5B | 1
_INVERSE = pow(_FACTOR, -1, 1 << _CODE_BITS)
_SPREAD = 0x9E3779B97F4A7C15
_TABLE_BITS = 10
_MOST_FOUND = 20

_PROBE = re.compile(r"\b(?:canary|probe)-\d{10}\b")
"""Words of canary and probes; no prompt of the load contains one."""

Word = tuple[str, int]
"""A word with its leading blank, and its tokens."""


def of_request(index: int) -> int:
    return index & (_CONVERSATION - 1)


def of_conversation(traffic_seed: int, phase: int, number: int) -> int:
    return _CONVERSATION | (traffic_seed & 0x7F) << 32 | (phase & 0xFF) << 24 | number & 0xFFFFFF


def owner_text(owner: int, id_prefix: str) -> str:
    """Name an owner: the request id `lc-<id_prefix>-17`, or its conversation."""
    if owner & _CONVERSATION:
        return f"conversation {owner & 0xFFFFFF} of phase {owner >> 24 & 0xFF}"
    return f"lc-{id_prefix}-{owner}"


def encode(owner: int, seed: int) -> int:
    """Make the code of an owner: 60 bits that look random."""
    mask, salt = _keys(seed)
    code = (owner << _CHECK_BITS | (owner ^ salt) * _SPREAD >> 40 & _CHECK_MASK) ^ mask
    code = (code ^ code >> 30) * _FACTOR & _MASK
    code = (code ^ code >> 30) * _FACTOR & _MASK
    return code ^ code >> 30


def decode(code: int, seed: int) -> int | None:
    """Return the owner of a code; None if no owner of this run has it."""
    code ^= code >> 30
    for _ in range(2):
        code = code * _INVERSE & _MASK
        code ^= code >> 30
    mask, salt = _keys(seed)
    owner, check = divmod(code ^ mask, 1 << _CHECK_BITS)
    return owner if check == (owner ^ salt) * _SPREAD >> 40 & _CHECK_MASK else None


@functools.lru_cache(maxsize=16)
def _keys(seed: int) -> tuple[int, int]:
    return draws.hash64(seed, 31) & _MASK, draws.hash64(seed, 37) & _MASK


class Alphabet:
    """Cheap words that write codes, none the begin or end of another. `bits` are those of a word; 0 for too few words."""

    def __init__(self, words: Sequence[Word]) -> None:
        chosen = _distinct(words)
        self.bits = max(len(chosen), 1).bit_length() - 1
        letters = chosen[: 1 << self.bits]
        self._values = {word: n for n, (word, _) in enumerate(letters)}
        self._lengths = sorted({len(word) for word, _ in letters})
        if not self.bits:
            return
        first, second = letters[:2]
        self.marker = first[0] + second[0] + first[0]
        self._marker_tokens = 2 * first[1] + second[1]
        self._joined = max(1, _TABLE_BITS // self.bits)
        self._size = self.bits * self._joined
        self._table: list[Word] = [("", 0)]
        for _ in range(self._joined):  # letters of a group of bits: a code takes few look-ups
            self._table = [(head + word, cost + more) for head, cost in self._table for word, more in letters]

    def write(self, code: int, available: int) -> Word | None:
        """Write code and marker; None without a code or enough tokens."""
        if not self.bits:
            return None
        parts, used = [], self._marker_tokens
        table, size = self._table, self._size
        mask = (1 << size) - 1
        for _ in range(0, _CODE_BITS, size):
            text, cost = table[code & mask]
            parts.append(text)
            used += cost
            code >>= size
        parts.append(self.marker)
        return ("".join(parts), used) if used <= available else None

    def read(self, text: str, seed: int) -> list[int]:
        found: list[int] = []
        at = text.find(self.marker) if self.bits else -1
        if at >= 0:
            text, at = f" {text}", at + 1  # the blank of a word at the begin of an answer is not sent
        while at >= 0 and len(found) < _MOST_FOUND:
            owner = self._owner_before(text, at, seed)
            if owner is not None:
                found.append(owner)
            at = text.find(self.marker, at + 1)
        return found

    def _owner_before(self, text: str, at: int, seed: int) -> int | None:
        code = 0
        groups = -(-_CODE_BITS // self._size)
        for _ in range(groups):
            group = 0
            for place in range(self._joined):
                letter = next((w for n in self._lengths if (w := text[max(0, at - n) : at]) in self._values), None)
                if letter is None:
                    return None
                group |= self._values[letter] << (place * self.bits)
                at -= len(letter)
            code = code << self._size | group
        return decode(code, seed) if code <= _MASK else None


def _distinct(words: Sequence[Word]) -> list[Word]:
    """Choose words of which none begins or ends another, cheap ones first."""
    chosen: list[Word] = []
    for word, cost in sorted(dict.fromkeys(words), key=lambda one: one[1]):
        if word.strip() and not any(_overlap(word, other) for other, _ in chosen):
            chosen.append((word, cost))
    return chosen


def _overlap(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return long.startswith(short) or long.endswith(short)


@functools.lru_cache(maxsize=16)
def alphabet(words: tuple[Word, ...]) -> Alphabet:
    return Alphabet(words)


class SecretWords:
    """Secret words of all requests of the run, those of other workers too: a word names its request."""

    def __init__(self, alphabets: Iterable[Alphabet], seed: int, id_prefix: str) -> None:
        self._alphabets = [alphabet for alphabet in alphabets if alphabet.bits]
        self._markers = [alphabet.marker for alphabet in self._alphabets]
        self._seed, self._id_prefix = seed, id_prefix

    def checker(self, own: int | None) -> Callable[[str], str | None]:
        """Return the check of an answer: it names the other request whose word is in the text, or returns None."""

        def foreign(text: str) -> str | None:
            for n, marker in enumerate(self._markers):
                if marker in text:
                    for owner in self._alphabets[n].read(text, self._seed):
                        if owner != own:
                            return owner_text(owner, self._id_prefix)
            if ("canary-" in text or "probe-" in text) and (probe := _PROBE.search(text)) is not None:
                return probe[0]
            return None

        return foreign
