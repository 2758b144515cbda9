"""Add two numbers."""

from __future__ import annotations

import random

from loadchaos.server.probes.question import Question, question


def arithmetic(rng: random.Random) -> Question:
    a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
    return question(f"What is {a} + {b}? Answer with the number only.", str(a + b))
