"""Find a password in a long text, at a random depth."""

from __future__ import annotations

import random

from loadchaos.server.probes.question import Question, question, word, words

WORDS = 48


def needle(rng: random.Random, n: int = WORDS) -> Question:
    filler, password = words(rng, n), word(rng)
    filler.insert(rng.randrange(n + 1), f"The password is {password}.")
    return question(f"{' '.join(filler)}\nWhat is the password? Answer with it only.", password)
