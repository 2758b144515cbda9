"""Pictures that questions ask about: digits and colours by pixel. The prober draws them and the embedded server reads
them, so both share this geometry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

SIDE = 224
"""Width and height in pixels."""
DIGITS = 3
SCALE = 8
"""Pixels of one cell of a glyph, in each direction."""
WIDTH, HEIGHT = 5, 7
"""Cells of a glyph."""
PAPER = (255, 255, 255)
SQUARE = (32, 192)
"""First and last but one pixel of a coloured square, in each direction."""

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 20, 20), "green": (20, 150, 30), "blue": (20, 40, 220), "yellow": (240, 220, 20),
    "black": (0, 0, 0), "orange": (250, 140, 10), "purple": (130, 20, 160), "pink": (250, 150, 190),
}  # fmt: skip
"""Colours with the words that name them; no other word names one of them as well."""

GLYPHS: Mapping[str, tuple[int, ...]] = {
    "0": (0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110),
    "1": (0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110),
    "2": (0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111),
    "3": (0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110),
    "4": (0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010),
    "5": (0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110),
    "6": (0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110),
    "7": (0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000),
    "8": (0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110),
    "9": (0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100),
}
"""Rows of each digit from top to bottom; the highest bit is on the left."""

_LEFT = (SIDE - (DIGITS * (WIDTH + 1) - 1) * SCALE) // 2
_TOP = (SIDE - HEIGHT * SCALE) // 2


def cells(place: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield row, bit, x and y of each cell of the digit at a place."""
    for row in range(HEIGHT):
        for column in range(WIDTH):
            x = _LEFT + (place * (WIDTH + 1) + column) * SCALE
            yield row, 1 << (WIDTH - 1 - column), x, _TOP + row * SCALE
