"""Messages from the proxy to the process that writes the recording. A frame is its length, its kind, the number of an
exchange, then its data: JSON, or bytes of a body.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = struct.Struct("<IBQ")


class FrameKind(enum.IntEnum):
    """Kinds of frames."""

    SETUP = 1
    """JSON of `RecordingSetup`."""
    BEGIN = 2
    """JSON: time, path; values to hide."""
    BODY = 3
    """Bytes of a request's body."""
    BODY_END = 4
    """JSON: bytes of the body, lost."""
    END = 5
    """JSON: outcome, status, times, tokens."""
    PROGRESS = 6
    """JSON: tokens of open exchanges."""
    FREEZE = 7
    """JSON: reason."""
    GAP = 8
    """JSON: frames that were lost."""


@dataclass(frozen=True, kw_only=True)
class RecordingSetup:
    """Data of the frame SETUP: where and how much is kept, whether bodies are, and the key of the hashes in hex."""

    folder: str
    keep_s: float
    max_bytes: int
    bodies: bool
    upstream: str
    recording: str
    key: str


def frame(kind: FrameKind, number: int, data: bytes) -> bytes:
    return _HEAD.pack(len(data), kind, number) + data


class FrameReader:
    """Cuts received bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, int, bytes]]:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(self._buffer, start)
            end = start + _HEAD.size + length
            if len(self._buffer) < end:
                break
            yield FrameKind(kind), number, bytes(self._buffer[start + _HEAD.size : end])
            start = end
        del self._buffer[:start]
