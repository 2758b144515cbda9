"""Formats of the images that loadchaos makes.

To add one: an encoder (as png.py and jpeg.py), its name in `Format`, and an entry in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loadchaos.load.payloads import jpeg, png

Format = Literal["png", "jpeg", "photo"]
Encoder = Callable[[bytes, int], Sequence[bytes]]
"""(identity, variation) to pieces of base64."""


@dataclass(frozen=True)
class ImageFormat:
    """One format. `media_type` is for the data URL, `label` for `explain`, `max_side` in pixels."""

    media_type: bytes
    label: str
    encoder: Callable[[int, int], Encoder]
    max_side: int = 100_000_000


FORMATS: Mapping[str, ImageFormat] = {
    "png": ImageFormat(b"png", "", lambda width, height: png.template(width, height).base64),
    "jpeg": ImageFormat(b"jpeg", " JPEG", lambda width, height: jpeg.template(width, height, "flat").base64, 60_000),
    "photo": ImageFormat(
        b"jpeg", " photo-like JPEG", lambda width, height: jpeg.template(width, height, "photo").base64, 60_000
    ),
}
