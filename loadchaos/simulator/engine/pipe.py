"""The pipe between the API server and its engine core: a socket pair with length-prefixed JSON, one frame a step."""

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
    """One message as a frame: four bytes of length, then JSON."""
    body = orjson.dumps(message)
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Cuts a byte stream into messages; keeps what is incomplete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Every message that `data` completes, in order."""
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
    """The API server's end. `lost` is called once, when the engine core's end is gone for whatever reason."""

    def __init__(self, received: Callable[[list[Any]], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None

    async def connect(self, end: socket.socket) -> None:
        """Take over one end of a socket pair."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the pipe is ours."""
        # uvloop's transports are none of asyncio's classes, though they have all of their methods
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes, perhaps with whole messages."""
        for message in self._splitter.feed(data):
            self._received(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the other end is gone."""
        del exc
        self._transport = None
        self._lost()

    def send(self, message: list[Any]) -> None:
        """Send one message; silently nothing when the engine core has gone (`lost` has been called)."""
        if self._transport is not None:
            self._transport.write(encode(message))

    def close(self) -> None:
        """Let the engine core see the end of the pipe, which ends it."""
        if self._transport is not None:
            self._transport.close()


# How the nouns travel: plain lists, because 10,000 outputs a second pass here.


def request_to_list(request: EngineRequest) -> list[Any]:
    """An EngineRequest as JSON-able values."""
    items = [[i.hash, i.tokens, i.offset, i.data] for i in request.mm_items]
    return [
        request.id,
        request.prompt_tokens,
        request.max_tokens,
        request.min_tokens,
        items,
        list(request.prefix_hashes),
        request.seed,
    ]


def request_from_list(values: list[Any]) -> EngineRequest:
    """The way back."""
    identity, prompt, most, least, items, prefix, seed = values
    return EngineRequest(identity, prompt, most, least, [MMItem(*item) for item in items], prefix, seed)


def outputs_to_list(result: StepResult) -> list[list[Any]]:
    """One step's outputs."""
    return [
        [o.request_id, o.new_tokens, o.finish_reason, o.error, o.cached_tokens, o.derailed, o.swapped_with]
        for o in result.outputs
    ]


def output_from_list(values: list[Any]) -> RequestOutput:
    """The way back, for one output."""
    return RequestOutput(*values)


def stats_to_list(stats: EngineStats) -> list[Any]:
    """The engine's gauges and counters."""
    return [
        stats.requests_running,
        stats.requests_waiting,
        stats.kv_usage,
        dict(stats.counters),
        stats.encoder_cache_tokens,
    ]


def stats_from_list(values: list[Any]) -> EngineStats:
    """The way back."""
    return EngineStats(*values)
