"""Make a unique JPEG in microseconds from rows that were compressed once.

With a restart marker after each row of blocks (ITU T.81, F.1.1.5.2) a row is decoded by itself, so any row may stand at
any place; only the marker's number counts on. The first rows are chosen by the image's identity from a set of variants;
the rest is equal for all. Fill bytes before a marker (B.1.1.2) make each piece a multiple of three bytes, so that base64
is computed once, too.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import re
import struct
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Look = Literal["flat", "photo"]
_BLOCK = 8  # without chroma subsampling a row of blocks is 8 pixels high
_IDENTITY_ROWS = 32
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_END = b"\xff\xd9"
_QUALITY = 85


class JpegTemplate:
    """The parts of a JPEG of one size that do not change from image to image."""

    def __init__(self, width: int, height: int, look: Look) -> None:
        rows = -(-height // _BLOCK)
        self._chosen = min(rows, _IDENTITY_ROWS)
        self._by_nibble = rows >= _IDENTITY_ROWS
        variants = 16 if self._by_nibble else 256
        head, segments = _compressed(width, variants + rows - self._chosen, look, variants)
        self._head = _aligned_head(head, height)
        self._pieces = [
            [_piece(segments[v], p, last=p == rows - 1) for v in range(variants)] for p in range(self._chosen)
        ]
        tail = [_piece(s, self._chosen + i, last=False) for i, s in enumerate(segments[variants:])]
        self._tail = b"".join(tail)[:-2] + _END if tail else b""
        self._head64, self._tail64 = base64.b64encode(self._head), base64.b64encode(self._tail)
        self._pieces64 = [[base64.b64encode(piece) for piece in row] for row in self._pieces]

    def _choice(self, identity: bytes, variation: int) -> list[int]:
        variants = len(self._pieces[0])
        if self._by_nibble:
            chosen = [int(digit, 16) for digit in identity.hex()]
        else:  # fewer rows than bits of an identity: each digest byte chooses one
            chosen = list(hashlib.blake2b(identity, digest_size=32).digest()[: self._chosen])
        if variation:
            chosen[-1] = (chosen[-1] + 1 + variation % (variants - 1)) % variants
        return chosen

    def file(self, identity: bytes, variation: int = 0) -> bytes:
        """Build the JPEG file whose first rows `identity` (16 bytes) chooses. `variation` exchanges one of them."""
        chosen = zip(self._pieces, self._choice(identity, variation), strict=True)
        return b"".join((self._head, *(row[v] for row, v in chosen), self._tail))

    def base64(self, identity: bytes, variation: int = 0) -> tuple[bytes, ...]:
        chosen = zip(self._pieces64, self._choice(identity, variation), strict=True)
        return (self._head64, *[row[v] for row, v in chosen], self._tail64)


def _piece(segment: bytes, position: int, *, last: bool) -> bytes:
    marker = _END if last else bytes((0xFF, 0xD0 + position % 8))
    if last:
        return segment + marker
    return segment + b"\xff" * (-(len(segment) + 2) % 3) + marker


def _aligned_head(head: bytes, height: int) -> bytes:
    """Build the head for a height. A comment makes its length a multiple of three."""
    at = head.index(b"\xff\xc0")  # SOF0: marker, length, precision, then the height
    head = head[: at + 5] + struct.pack(">H", height) + head[at + 7 :]
    filling = -(len(head) + 4) % 3
    return head[:2] + b"\xff\xfe" + struct.pack(">H", 2 + filling) + b" " * filling + head[2:]


def _compressed(width: int, rows: int, look: Look, variants: int) -> tuple[bytes, list[bytes]]:
    """Compress a tall picture with Pillow. Returns (file up to its first row, rows)."""
    import numpy as np  # only once a size, and only where JPEGs are sent
    from PIL import Image

    y, x = np.mgrid[0 : rows * _BLOCK, 0:width].astype(np.float32)
    pixels = np.stack([x * 255 / max(1, width), 120 + 100 * np.sin(y / 97), np.full_like(x, 90)], axis=-1)
    if look == "photo":
        pixels = pixels * 0.5 + _texture(rows * _BLOCK, width)
    # A colour of its own marks each variant; quantisation leaves neighbours apart.
    step = 256 // variants
    row = (y // _BLOCK).astype(np.int32)
    level = (row * step % 256).astype(np.float32)
    tint = np.stack([level, 255 - level, (level * 7) % 256], axis=-1)
    marked = (row < variants)[..., None]
    pixels = np.where(marked, tint * (0.6 if look == "photo" else 1) + (pixels * 0.4 if look == "photo" else 0), pixels)
    out = io.BytesIO()
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8), "RGB")
    image.save(out, "JPEG", quality=_QUALITY, subsampling=0, restart_marker_rows=1)
    data = out.getvalue()
    scan = data.index(b"\xff\xda")
    begin = scan + 2 + struct.unpack(">H", data[scan + 2 : scan + 4])[0]
    return data[:begin], _RESTART.split(data[begin : -len(_END)])


def _texture(height: int, width: int) -> NDArray[np.float32]:
    import numpy as np  # see above

    rng = np.random.default_rng(1)
    out = np.zeros((height, width, 3), np.float32)
    for scale, strength in ((64, 60), (16, 35), (4, 10), (1, 3)):
        small = rng.normal(0, strength, (-(-height // scale), -(-width // scale), 3)).astype(np.float32)
        out += small.repeat(scale, 0).repeat(scale, 1)[:height, :width]
    return out + 64


@functools.lru_cache(maxsize=32)
def template(width: int, height: int, look: Look = "flat") -> JpegTemplate:
    """Return the template of a size, at most 65535 pixels a side; the first time takes tenths of a second."""
    return JpegTemplate(width, height, look)
