"""Write Motion-JPEG video in an AVI container, which needs no codec.

Every decoder reads it. RIFF AVI as in Microsoft's `AVI RIFF File Reference`: a list of headers, the frames, an index.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_HAS_INDEX = 0x10
_KEY_FRAME = 0x10


def file(frames: Sequence[bytes], width: int, height: int, fps: int) -> bytes:
    """Build the AVI file of these JPEGs of equal size."""
    largest = max(len(frame) for frame in frames)
    movie, index, at = [b"movi"], [], 4
    for frame in frames:
        index.append(struct.pack("<4sIII", b"00dc", _KEY_FRAME, at, len(frame)))
        movie.append(_chunk(b"00dc", frame))
        at += len(movie[-1])
    rate = largest * fps
    main = (1_000_000 // fps, rate, 0, _HAS_INDEX, len(frames), 0, 1, largest, width, height, 0, 0, 0, 0)
    stream = (b"vids", b"MJPG", 0, 0, 0, 0, 1, fps, 0, len(frames), largest, 0xFFFFFFFF, 0, 0, 0, width, height)
    bitmap = (40, width, height, 1, 24, b"MJPG", width * height * 3, 0, 0, 0, 0)
    head = _list(
        b"hdrl",
        _chunk(b"avih", struct.pack("<14I", *main)),
        _list(
            b"strl",
            _chunk(b"strh", struct.pack("<4s4sIHHIIIIIIII4H", *stream)),
            _chunk(b"strf", struct.pack("<IiiHH4sIiiII", *bitmap)),
        ),
    )
    return _chunk(b"RIFF", b"AVI " + head + _chunk(b"LIST", b"".join(movie)) + _chunk(b"idx1", b"".join(index)))


def _list(kind: bytes, *parts: bytes) -> bytes:
    return _chunk(b"LIST", kind + b"".join(parts))


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Build a chunk; chunks begin at even offsets."""
    return struct.pack("<4sI", kind, len(data)) + data + b"\0" * (len(data) % 2)
