"""Name the colour of a square in an image."""

from __future__ import annotations

import random
from dataclasses import replace

from loadchaos.core.probe_pictures import COLOURS
from loadchaos.server.probes.pictures import draw_square
from loadchaos.server.probes.question import Question, question

TEXT = "What color is the square in this picture? Answer with one word."


def image_colour(rng: random.Random) -> Question:
    colour = rng.choice(list(COLOURS))
    return replace(question(TEXT, colour), images=(draw_square(colour, mark=rng.getrandbits(24)),))
