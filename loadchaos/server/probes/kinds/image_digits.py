"""Read a number in an image: a stale embedding gives another image's."""

from __future__ import annotations

import random
from dataclasses import replace

from loadchaos.core.probe_pictures import DIGITS
from loadchaos.server.probes.pictures import draw_number
from loadchaos.server.probes.question import Question, question

TEXT = "What number is in this picture? Answer with the number only."


def image_digits(rng: random.Random) -> Question:
    number = str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))
    return replace(question(TEXT, number), images=(draw_number(number, mark=rng.getrandbits(24)),))
