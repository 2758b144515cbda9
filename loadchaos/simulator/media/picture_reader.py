"""Read digits and colours in an image, as a vision model does. It reads the pictures of core/probe_pictures.py from
their pixels; other images say nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadchaos.core.probe_pictures import COLOURS, DIGITS, GLYPHS, PAPER, SCALE, SIDE, SQUARE, cells

if TYPE_CHECKING:
    from PIL import Image

_DARK = 384  # sum of three channels: a pixel of a digit is below, paper above
_BY_ROWS = {rows: digit for digit, rows in GLYPHS.items()}
_BY_COLOUR = {rgb: name for name, rgb in COLOURS.items()}


def read_picture(image: Image.Image) -> str:
    """Return the number or the colour of a picture; empty: it has none."""
    if image.size != (SIDE, SIDE):
        return ""
    picture = image.convert("RGB")
    corner = _pixel(picture, SQUARE[0] + 2, SQUARE[0] + 2)
    if corner != PAPER:
        return _BY_COLOUR.get(corner, "")
    digits = []
    for place in range(DIGITS):
        rows = [0] * len(GLYPHS["0"])
        for row, bit, x, y in cells(place):
            if sum(_pixel(picture, x + SCALE // 2, y + SCALE // 2)) < _DARK:
                rows[row] |= bit
        digits.append(_BY_ROWS.get(tuple(rows), ""))
    return "".join(digits) if all(digits) else ""


def _pixel(image: Image.Image, x: int, y: int) -> tuple[int, int, int]:
    found = image.getpixel((x, y))
    assert isinstance(found, tuple)  # RGB
    return int(found[0]), int(found[1]), int(found[2])
