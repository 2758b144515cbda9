"""The API server's client of the engine core process. It starts the process, sends it requests, and receives its steps
and its death.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Protocol

from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.simulator.engine import pipe as frames
from loadchaos.simulator.engine.answers import AnswerText
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, EngineStats, RequestOutput

_READ_BYTES = 1 << 18


class OutputSink(Protocol):
    """Receiver of one request's outputs, and the text that they are tokens of."""

    answer: AnswerText

    def output(self, output: RequestOutput) -> None: ...

    def engine_died(self) -> None: ...


class EngineDiedEarlyError(Exception):
    """The engine core ended before it was ready. Its own traceback is in the log."""


class EngineClient:
    """One engine core and its requests. The server sets `on_death`, and `on_step`, which gets the
    tokens of each step that had some.
    """

    def __init__(self, config: EngineConfig, title: str) -> None:
        self.config = config
        self.stats = EngineStats(0, 0, 0.0)
        self.dead = False
        self.pid = 0
        self.on_step: Callable[[int], None] = lambda _: None
        self.on_death: Callable[[], None] = lambda: None
        self._title = title
        self._sinks: dict[str, OutputSink] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 0
        self._ready: asyncio.Future[int] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> socket.socket:
        """Start the process, and return our end of the pipe. Called before any event loop runs, so that the process
        starts while we import.
        """
        ours, theirs = socket.socketpair()
        # A monitor recognises the processes by the title in the command line, as with the real server.
        argv = [*PYTHON_MODULE, "loadchaos.simulator.engine.process", self._title, str(theirs.fileno())]
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        theirs.close()
        return ours

    async def start(self, pipe: socket.socket) -> None:
        """Wait until the engine is ready. Raises EngineDiedEarlyError when it ends first."""
        self._ready = asyncio.get_running_loop().create_future()
        reader, self._writer = await asyncio.open_connection(sock=pipe)
        self._reading = asyncio.create_task(self._read(reader))
        self._send(["config", {**asdict(self.config), "defects": sorted(self.config.defects)}])
        await self._ready

    def add(self, request: EngineRequest, sink: OutputSink) -> None:
        """Send a request; its outputs go to `sink`. A dead engine tells the sink at once."""
        if self.dead:
            sink.engine_died()
            return
        self._sinks[request.id] = sink
        self._send(["add", frames.values_of(request)])

    def abort(self, ids: Iterable[str]) -> None:
        known = [i for i in ids if self._sinks.pop(i, None) is not None]
        if known:
            self._send(["abort", known])

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Call a method of the engine core between two steps. It runs in order with the requests sent before. The
        future never ends while the engine hangs, and raises EngineDiedEarlyError when it is or becomes dead.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.dead:
            future.set_exception(EngineDiedEarlyError())
            return future
        self._next_call += 1
        self._calls[self._next_call] = future
        self._send(["call", self._next_call, method, list(arguments)])
        return future

    @property
    def in_flight(self) -> int:
        return len(self._sinks)

    def stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def reap(self) -> None:
        if self._process is not None:
            self._process.wait()

    def fail_all_requests(self) -> None:
        self.dead = True
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.engine_died()
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(EngineDiedEarlyError())

    def _send(self, message: list[Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frames.encode(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read the engine core's messages until its end is gone, for any reason."""
        splitter = frames.FrameSplitter()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                for message in splitter.feed(data):
                    self._received(message)
        self._engine_lost()

    def _received(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "step":
            self.stats = EngineStats(*message[3])
            if message[2]:
                self.on_step(message[2])
            for values in message[1]:
                self._deliver(RequestOutput(*values))
        elif kind == "stats":
            self.stats = EngineStats(*message[1])
        elif kind == "reply":
            future = self._calls.pop(message[1], None)
            if future is not None and not future.done():
                future.set_result(message[2])
        elif kind == "ready" and self._ready is not None:
            self._ready.set_result(message[1])

    def _deliver(self, output: RequestOutput) -> None:
        sink = self._sinks.get(output.request_id)
        if sink is None:
            return
        if output.swapped_with is not None:
            other = self._sinks.get(output.swapped_with)
            if other is not None:
                sink.answer, other.answer = other.answer, sink.answer
            return
        if output.finish_reason is not None:
            del self._sinks[output.request_id]
        sink.output(output)

    def _engine_lost(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineDiedEarlyError())
            return
        if self.dead:
            return
        self.dead = True
        self.on_death()
