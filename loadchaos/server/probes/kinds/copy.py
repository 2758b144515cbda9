"""Copy words: a dropped, repeated or foreign token changes the answer."""

from __future__ import annotations

import random

from loadchaos.server.probes.question import Question, question, words

WORDS = 8


def copy(rng: random.Random, n: int = WORDS) -> Question:
    listed = " ".join(words(rng, n))
    return question(f"Repeat these words, with single blanks between them and nothing else: {listed}", listed)
