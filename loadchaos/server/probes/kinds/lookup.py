"""Look up a key in a table: wrong context gives another row's word."""

from __future__ import annotations

import random

from loadchaos.server.probes.question import Question, question, words

ROWS = 8


def lookup(rng: random.Random, rows: int = ROWS) -> Question:
    drawn = words(rng, 2 * rows)
    table = dict(zip(drawn[:rows], drawn[rows:], strict=True))
    key = rng.choice(drawn[:rows])
    lines = "\n".join(f"- {k} {v}" for k, v in table.items())
    return question(f"{lines}\nWhich word stands beside {key} in this table? Answer with that word only.", table[key])
