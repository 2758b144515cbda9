"""Make a unique PNG in 2 us: most of its pixels are compressed only once.

The pixels' stream is split over three IDAT chunks. The first holds one stored (uncompressed) deflate block with the
pixels that change. The second holds the rest, compressed and with its CRC. The third holds the Adler-32 of all,
combined from the two parts' (zlib's adler32_combine). Base64 of the second is computed once: it begins and ends on a
multiple of three bytes.
"""

from __future__ import annotations

import base64
import binascii
import functools
import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ADLER = 65521
_ZLIB_HEADER = b"\x78\x01"
_EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"
_LAST_BLOCK = b"\x01\x00\x00\xff\xff"
_CHANGED = 50
"""Bytes that differ: filter byte, 16 pixels and a third of one more; 33 + 19 + 50 is a multiple of three."""


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


_END = chunk(b"IEND", b"")
_CLOSING, _CLOSING_CRC = b"\x00\x00\x00\x04IDAT", zlib.crc32(b"IDAT")
_word = struct.Struct(">I").pack


class PngTemplate:
    """The parts of a PNG of one size that do not change."""

    def __init__(self, width: int, height: int) -> None:
        raw = _pixels(width, height)
        self._fixed = min(_CHANGED, 1 + 3 * width)  # within the first row: the next begins with its filter type
        self._head = SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        rest = raw[self._fixed :]
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        tail = compressor.compress(rest) + compressor.flush(zlib.Z_SYNC_FLUSH) + _LAST_BLOCK
        while len(tail) % 3:
            tail = tail[: -len(_LAST_BLOCK)] + _EMPTY_BLOCK + _LAST_BLOCK
        self._tail = chunk(b"IDAT", tail)
        adler = zlib.adler32(rest)
        self._rest_low, self._rest_high, self._rest_length = adler & 0xFFFF, adler >> 16, len(rest)
        data_length = len(_ZLIB_HEADER) + 5 + self._fixed
        stored = b"IDAT" + _ZLIB_HEADER + struct.pack("<BHH", 0, self._fixed, self._fixed ^ 0xFFFF)
        self._first, self._first_crc = struct.pack(">I", data_length) + stored, zlib.crc32(stored)
        self._aligned = self._fixed == _CHANGED
        self._head64, self._tail64 = base64.b64encode(self._head), base64.b64encode(self._tail)

    def _changing(self, identity: bytes, variation: int) -> tuple[bytes, bytes]:
        """Build the chunks that change, for 16 bytes of identity. Returns (first IDAT chunk, last IDAT chunk and IEND)."""
        pixels = identity * 4
        if variation:
            pixels = (int.from_bytes(pixels[:3], "big") ^ variation).to_bytes(3, "big") + pixels[3:]
        changed = (b"\x00" + pixels)[: self._fixed]
        adler = zlib.adler32(changed)
        low = (adler & 0xFFFF) + self._rest_low - 1
        high = (adler >> 16) + self._rest_high + self._rest_length * ((adler & 0xFFFF) - 1)
        closing = _word((high % _ADLER) << 16 | low % _ADLER)
        first = self._first + changed + _word(zlib.crc32(changed, self._first_crc))
        return first, _CLOSING + closing + _word(zlib.crc32(closing, _CLOSING_CRC)) + _END

    def file(self, identity: bytes, variation: int = 0) -> bytes:
        """Build the PNG file whose first pixels are `identity` (16 bytes); `variation` (24 bits) changes the first."""
        first, last = self._changing(identity, variation)
        return self._head + first + self._tail + last

    def base64(self, identity: bytes, variation: int = 0) -> tuple[bytes, ...]:
        if not self._aligned:  # an image of a few pixels: encoding the whole of it costs nothing
            return (base64.b64encode(self.file(identity, variation)),)
        first, last = self._changing(identity, variation)
        return (
            self._head64,
            binascii.b2a_base64(first, newline=False),
            self._tail64,
            binascii.b2a_base64(last, newline=False),
        )


def _pixels(width: int, height: int) -> bytes:
    """Make a gradient whose filtered bytes are long runs. A megapixel takes 3 kB. Up (filter type 2) with every
    difference 2 is a row that is two brighter than the one above. Sub (1) with every difference 1 is one that brightens
    to the right: filter byte and data are the same byte. The first row is unfiltered, as it changes; the second depends
    on nothing, so that only that one row changes.
    """
    length = 1 + 3 * width
    drift, ramp = b"\x02" * length, b"\x01" * length
    return b"\x00" * length + b"".join(ramp if y % 64 == 1 else drift for y in range(1, height))


@functools.lru_cache(maxsize=64)
def template(width: int, height: int) -> PngTemplate:
    """Return the template of a size. Made once, in tens of milliseconds for a megapixel."""
    return PngTemplate(width, height)
