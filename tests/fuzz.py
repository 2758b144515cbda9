"""Spoil inputs at random, from a seed."""

import os
import random
from collections.abc import Sequence

INPUTS = int(os.environ.get("LOADCHAOS_TEST_INPUTS", "200"))
"""Inputs of each kind; the full proof takes 20000."""
EACH = 100
SEEDS = range(-(-INPUTS // EACH))
"""Seeds of tests that take `EACH` inputs each, within the time limit of a test."""


def spoiled(data: bytes, words: Sequence[bytes], rng: random.Random) -> bytes:
    """`data` after one to four changes: parts that are lost, doubled or exchanged, other bytes, or one of `words` more."""
    for _ in range(rng.randint(1, 4)):
        a, b = sorted(rng.randint(0, len(data)) for _ in range(2))
        b = min(b, a + rng.choice([1, 4, 40, 4000]))
        change = rng.randrange(6)
        if change == 0:
            data = data[:a] + data[b:]
        elif change == 1:
            data = data[:b] + data[a:]
        elif change == 2:
            data = data[:a] + rng.randbytes(min(b - a, 8)) + data[b:]
        elif change == 3:
            data = data[:a] + rng.choice(words) + data[a:]
        elif change == 4:
            data = data[:a] + rng.choice(words) + data[b:]
        else:
            data = data[b:] + data[a:b] + data[:a] if rng.random() < 0.1 else data[:b]
    return data
