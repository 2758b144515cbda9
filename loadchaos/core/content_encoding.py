"""Unpack gzip and deflate, the encodings of answers that are read."""

from __future__ import annotations

import zlib

PACKED = frozenset({"gzip", "x-gzip", "deflate"})
"""Values of content-encoding, in lower case, that `inflater` unpacks."""


def inflater() -> zlib._Decompress:
    """Make the state of one body. gzip and zlib are told by its header."""
    return zlib.decompressobj(zlib.MAX_WBITS | 32)
