"""Questions and the words that they are made of."""

from __future__ import annotations

import random
from dataclasses import dataclass

_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aeiou"
_SYLLABLES, _COUNT = 3, 512
_STORY_TOKENS = 96


@dataclass(frozen=True)
class Question:
    """One prompt with its right answer. `most_tokens` is enough for a byte-level tokenizer; `images` are data URLs
    before the text, `uuid` their name; requests with the same `salt` share a part of the prefix cache of their own.
    """

    prompt: str
    expected: str
    most_tokens: int
    images: tuple[str, ...] = ()
    uuid: str = ""
    salt: str = ""


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(_SYLLABLES))


WORDS: tuple[str, ...] = tuple(dict.fromkeys(_word(random.Random(n)) for n in range(_COUNT)))
"""Words without a meaning, such as `bakodu`. They are few, so that even a tiny model can learn them."""


def word(rng: random.Random) -> str:
    return rng.choice(WORDS)


def words(rng: random.Random, n: int) -> list[str]:
    return rng.sample(WORDS, n)


def story(rng: random.Random) -> Question:
    """Return a prompt without one right answer, whose answer is long."""
    return Question(f"Continue this text: {' '.join(words(rng, 12))}", "", _STORY_TOKENS)


def question(prompt: str, expected: str) -> Question:
    """Return a question whose answer may have one token for each character."""
    return Question(prompt, expected, most_tokens=len(expected) + 8)
