"""Pipe between the API server and its engine core. A socket pair with length-prefixed JSON, one frame per step."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson

from loadchaos.simulator.engine.types import EngineRequest, EngineStats, MMItem, RequestOutput

_LENGTH = struct.Struct("<I")


def encode(message: list[Any]) -> bytes:
    body = orjson.dumps(message)
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Splits a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            yield orjson.loads(memoryview(self._buffer)[start + _LENGTH.size : end].tobytes())
            start = end
        del self._buffer[:start]


# The types travel as the values of their fields, because 10,000 outputs per second pass here.
_VALUES = {
    kind: attrgetter(*(field.name for field in fields(kind))) for kind in (EngineRequest, RequestOutput, EngineStats)
}


def values_of(one: EngineRequest | RequestOutput | EngineStats) -> tuple[Any, ...]:
    values: tuple[Any, ...] = _VALUES[type(one)](one)
    return values


def request_of(values: list[Any]) -> EngineRequest:
    identity, prompt, most, least, items, *rest = values
    return EngineRequest(identity, prompt, most, least, [MMItem(**item) for item in items], *rest)
