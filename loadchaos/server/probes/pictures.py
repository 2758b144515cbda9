"""Draw digits or a coloured square as a data URL. One pixel in a corner (`mark`; 0: white) makes files differ."""

from __future__ import annotations

import base64
import io

from loadchaos.core.probe_pictures import COLOURS, GLYPHS, PAPER, SCALE, SIDE, SQUARE, cells

_CORNER = 16


def draw(content: str, *, mark: int = 0) -> str:
    return draw_number(content, mark=mark) if content.isdigit() else draw_square(content, mark=mark)


def draw_number(number: str, *, mark: int = 0) -> str:
    boxes = [
        (x, y, x + SCALE, y + SCALE)
        for place, digit in enumerate(number)
        for row, bit, x, y in cells(place)
        if GLYPHS[digit][row] & bit
    ]
    return _png(boxes, (0, 0, 0), mark)


def draw_square(colour: str, *, mark: int = 0) -> str:
    begin, end = SQUARE
    return _png([(begin, begin, end, end)], COLOURS[colour], mark)


def _png(boxes: list[tuple[int, int, int, int]], ink: tuple[int, int, int], mark: int) -> str:
    from PIL import Image  # 50 ms that only runs with images need

    image = Image.new("RGB", (SIDE, SIDE), PAPER)
    for box in boxes:
        image.paste(ink, box)
    if mark:
        place = mark % (_CORNER * _CORNER)
        image.putpixel((place % _CORNER, place // _CORNER), (mark >> 16 & 127, mark >> 8 & 127, mark & 127))
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
