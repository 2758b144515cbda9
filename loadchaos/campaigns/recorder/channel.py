"""Send what taps read to the process that writes it. The channel never waits. Where the writer falls behind, bodies are
lost first, then rows; both are counted. A writer that has ended is started again.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable
from typing import cast

import orjson

from loadchaos.campaigns.recorder.frames import FrameKind, RecordingSetup, frame
from loadchaos.campaigns.recorder.shape import known_path
from loadchaos.campaigns.recorder.tap import TappedExchange, end_row, secret_words
from loadchaos.core.lifetime import PYTHON_MODULE

MAX_BODY_BYTES = 32 << 20
"""Maximum size of a recorded body; of a larger one only the length is recorded."""
MAX_WAITING_BYTES = 64 << 20
_MORE_FOR_ROWS = 8 << 20
PROGRESS_S = 0.5
_RESTART_S = 1.0


class RecordingChannel(asyncio.Protocol):
    """Sink of the taps. `on_end` sees every exchange at its end; `notice` gets messages of the writer."""

    def __init__(self, setup: RecordingSetup, notice: Callable[[dict[str, object]], None]) -> None:
        self._setup, self._notice = setup, notice
        self.keeps_bodies = setup.bodies
        self.on_end: Callable[[TappedExchange], None] = lambda _: None
        self._transport: asyncio.WriteTransport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._open: dict[int, TappedExchange] = {}
        self._known: dict[int, int] = {}  # tokens in the newest progress row
        self._lost = 0
        self._rest = b""
        self._closing = False

    @property
    def writer_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [*PYTHON_MODULE, "loadchaos.campaigns.recorder.writer", str(theirs.fileno())]
            self._process = await asyncio.to_thread(
                subprocess.Popen, argv, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
            )
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)

    async def run(self) -> None:
        """Send progress; start the writer again when it has ended."""
        while True:
            await asyncio.sleep(PROGRESS_S)
            if self._process is not None and self._process.poll() is not None and not self._closing:
                self._notice({"what": "writer_ended", "code": self._process.returncode})
                await asyncio.sleep(_RESTART_S)
                await self.start()
            self.progress()

    async def close(self, wait_s: float = 10.0) -> None:
        self._closing = True
        self.progress()
        if self._transport is not None:
            self._transport.write_eof()
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, wait_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(frame(FrameKind.SETUP, 0, orjson.dumps(self._setup)))

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._notice(orjson.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - its signature is asyncio's
        self._transport = None
        self._rest = b""
        for exchange in self._open.values():
            exchange.lost = True

    def next_id(self) -> int:
        self._number += 1
        return self._number

    def begin(self, exchange: TappedExchange) -> None:
        if not exchange.recorded:
            return
        row: dict[str, object] = {"at_ns": exchange.at_ns, "path": known_path(exchange.path)}
        if self.keeps_bodies:
            row["secrets"] = secret_words(exchange.secrets)
        self._open[exchange.id] = exchange
        self._send(FrameKind.BEGIN, exchange.id, orjson.dumps(row))

    def body(self, exchange: TappedExchange, data: bytes) -> None:
        if not exchange.recorded or exchange.lost:
            return
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if exchange.body_bytes > MAX_BODY_BYTES or waiting + len(data) > MAX_WAITING_BYTES:
            exchange.lost = True
            return
        self._send(FrameKind.BODY, exchange.id, data)

    def body_end(self, exchange: TappedExchange) -> None:
        if exchange.recorded:
            row = {"bytes": exchange.body_bytes, "lost": exchange.lost}
            self._send(FrameKind.BODY_END, exchange.id, orjson.dumps(row))

    def end(self, exchange: TappedExchange) -> None:
        if exchange.recorded:
            self._open.pop(exchange.id, None)
            self._known.pop(exchange.id, None)
            self._send(FrameKind.END, exchange.id, orjson.dumps(end_row(exchange)))
        self.on_end(exchange)

    def progress(self) -> None:
        """Send the tokens of open exchanges, so that they survive a kill."""
        tokens = {str(n): e.tokens for n, e in self._open.items() if e.tokens != self._known.get(n, 0)}
        if tokens:
            self._known.update((int(n), count) for n, count in tokens.items())
            row = {"at_ns": time.monotonic_ns(), "tokens": tokens}
            self._send(FrameKind.PROGRESS, 0, orjson.dumps(row))

    def freeze(self, reason: str) -> None:
        self.progress()
        self._send(FrameKind.FREEZE, 0, orjson.dumps({"at_ns": time.monotonic_ns(), "reason": reason}))

    def _send(self, kind: FrameKind, number: int, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > MAX_WAITING_BYTES + _MORE_FOR_ROWS:
            self._lost += 1
            return
        if self._lost:
            row = {"at_ns": time.monotonic_ns(), "rows": self._lost, "why": "the writer fell behind or ended"}
            transport.write(frame(FrameKind.GAP, 0, orjson.dumps(row)))
            self._lost = 0
        transport.write(frame(kind, number, data))
