"""Pipe between the API server and its engine core. A socket pair with length-prefixed JSON, one frame per step."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, cast

import orjson

from loadchaos.simulator.engine.types import EngineRequest, EngineStats, MMItem, RequestOutput, StepResult

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


class EngineLink(asyncio.Protocol):
    """The API server's end of the pipe. `lost` is called once, when the engine core's end is gone for any reason."""

    def __init__(self, received: Callable[[list[Any]], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None

    async def connect(self, end: socket.socket) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, though they have all of their methods
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for message in self._splitter.feed(data):
            self._received(message)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._lost()

    def send(self, message: list[Any]) -> None:
        if self._transport is not None:
            self._transport.write(encode(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


# The types travel as plain lists, because 10,000 outputs per second pass here.


def request_to_list(request: EngineRequest) -> list[Any]:
    items = [[i.hash, i.tokens, i.offset, i.data] for i in request.mm_items]
    return [
        request.id,
        request.prompt_tokens,
        request.max_tokens,
        request.min_tokens,
        items,
        list(request.prefix_hashes),
        request.seed,
        request.stop_after,
        request.adapter,
        request.guided,
    ]


def request_from_list(values: list[Any]) -> EngineRequest:
    identity, prompt, most, least, items, *rest = values
    return EngineRequest(identity, prompt, most, least, [MMItem(*item) for item in items], *rest)


def outputs_to_list(result: StepResult) -> list[list[Any]]:
    return [
        [
            o.request_id,
            o.new_tokens,
            o.finish_reason,
            o.error,
            o.cached_tokens,
            o.derailed,
            o.swapped_with,
            o.fault,
            o.seen_image,
            o.used_adapter,
        ]
        for o in result.outputs
    ]


def output_from_list(values: list[Any]) -> RequestOutput:
    return RequestOutput(*values)


def stats_to_list(stats: EngineStats) -> list[Any]:
    return [
        stats.requests_running,
        stats.requests_waiting,
        stats.kv_usage,
        dict(stats.counters),
        stats.encoder_cache_tokens,
    ]


def stats_from_list(values: list[Any]) -> EngineStats:
    return EngineStats(*values)
