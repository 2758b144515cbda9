"""Questions with one right answer, sent beside the load. To add a kind: a function from a random generator to a
`Question`, an entry in `KINDS`, and its name in `ProbeKind` (loadchaos/core/probe_names.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from loadchaos.core.probe_names import ProbeKind
from loadchaos.core.probe_pictures import COLOURS, DIGITS
from loadchaos.server.probes.pictures import draw_number, draw_square
from loadchaos.server.probes.question import Question, question, word, words

NUMBER_TEXT = "What number is in this picture? Answer with the number only."
COLOUR_TEXT = "What color is the square in this picture? Answer with one word."


def arithmetic(rng: random.Random) -> Question:
    a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
    return question(f"What is {a} + {b}? Answer with the number only.", str(a + b))


def copy(rng: random.Random, n: int = 8) -> Question:
    """Words to repeat: a dropped, repeated or foreign token changes the answer."""
    listed = " ".join(words(rng, n))
    return question(f"Repeat these words, with single blanks between them and nothing else: {listed}", listed)


def lookup(rng: random.Random, rows: int = 8) -> Question:
    """A table and one of its keys: wrong context gives another row's word."""
    drawn = words(rng, 2 * rows)
    table = dict(zip(drawn[:rows], drawn[rows:], strict=True))
    key = rng.choice(drawn[:rows])
    lines = "\n".join(f"- {k} {v}" for k, v in table.items())
    return question(f"{lines}\nWhich word stands beside {key} in this table? Answer with that word only.", table[key])


def needle(rng: random.Random, n: int = 48) -> Question:
    """A password in a long text, at a random depth."""
    filler, password = words(rng, n), word(rng)
    filler.insert(rng.randrange(n + 1), f"The password is {password}.")
    return question(f"{' '.join(filler)}\nWhat is the password? Answer with it only.", password)


def image_digits(rng: random.Random) -> Question:
    """A number in an image that is unique by one pixel: a stale embedding gives another image's."""
    number = str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))
    return replace(question(NUMBER_TEXT, number), images=(draw_number(number, mark=rng.getrandbits(24)),))


def image_colour(rng: random.Random) -> Question:
    """A coloured square in an image that is unique by one pixel."""
    colour = rng.choice(list(COLOURS))
    return replace(question(COLOUR_TEXT, colour), images=(draw_square(colour, mark=rng.getrandbits(24)),))


KINDS: Mapping[ProbeKind, Callable[[random.Random], Question]] = {
    "copy": copy,
    "lookup": lookup,
    "needle": needle,
    "arithmetic": arithmetic,
    "image_digits": image_digits,
    "image_colour": image_colour,
}
