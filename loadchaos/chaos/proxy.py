"""A TCP proxy with toxics, in a process of its own: `python -m loadchaos.chaos.proxy HOST PORT`. It prints `{"what":
"listening", "port": N}`, then obeys lines on standard input: `{"what": "add", "toxic": {...}}` and `{"what": "remove",
"name": ...}`, and answers each. It ends when its standard input closes, so when its parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

from loadchaos.chaos.toxics import TOXICS, Chunking, ProxyAnswer, Toxic, ToxicType

_READ_BYTES = 16384
_QUEUE = 64  # pieces that may wait in a delay, before the sender is made to wait
_BLOCKED_POLL_S = 0.05


class _ClosedByToxicError(Exception):
    """A toxic has closed this connection in order, without a reset."""


class _Link:
    """A client's connection and the one to the server. Pieces of data wait in a queue, each with its time of arrival."""

    def __init__(self, proxy: Proxy, number: int, writers: dict[str, asyncio.StreamWriter]) -> None:
        self._proxy, self.number, self._writers = proxy, number, writers
        self._passed: dict[str, int] = {}

    def hits(self, toxic: Toxic) -> bool:
        """Return True if this connection belongs to the toxic's share. The same seed gives the same connections."""
        return random.Random(f"{toxic.seed}/{toxic.name}/{self.number}").random() < toxic.share

    def toxics(self, stream: str) -> Iterator[ToxicType]:
        for active in list(self._proxy.toxics.values()):
            if active.toxic.stream == stream and self.hits(active.toxic):
                active.hit.add(self.number)
                yield active

    async def pump(self, stream: str, reader: asyncio.StreamReader) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
        reading = asyncio.create_task(self._read(reader, queue))
        try:
            while True:
                arrived, data = await queue.get()
                await self._delay(stream, arrived)
                if not data:
                    await self._end(stream)
                    return
                await self._wait_while_blocked(stream)
                await self._pass(stream, data)
        except _ClosedByToxicError:
            self.close()
        except (ConnectionError, OSError):
            self.reset()
        finally:
            reading.cancel()

    async def _read(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        while True:
            try:
                data = await reader.read(_READ_BYTES)
            except (ConnectionError, OSError):
                self.reset()
                return
            await queue.put((time.monotonic(), data))
            if not data:
                return

    async def _delay(self, stream: str, arrived: float) -> None:
        for active in self.toxics(stream):
            if delay_s := active.delay_s():
                await asyncio.sleep(max(0.0, arrived + delay_s - time.monotonic()))

    async def _wait_while_blocked(self, stream: str) -> None:
        """Wait while a toxic blocks data; the connection is closed when the toxic's time is over."""
        begin = time.monotonic()
        while blocking := [active for active in self.toxics(stream) if active.blocks]:
            for active in blocking:
                limit_s = active.close_after_s()
                if limit_s is not None and time.monotonic() - begin >= limit_s:
                    raise _ClosedByToxicError
            await asyncio.sleep(_BLOCKED_POLL_S)

    async def _pass(self, stream: str, data: bytes) -> None:
        for piece, wait_s in self._pieces(stream, data):
            allowed = self._allowed(stream, len(piece))
            self._writers[stream].write(piece[:allowed])
            await self._writers[stream].drain()
            self._passed[stream] = self._passed.get(stream, 0) + allowed
            if allowed < len(piece):
                raise _ClosedByToxicError
            if wait_s:
                await asyncio.sleep(wait_s)

    def _pieces(self, stream: str, data: bytes) -> Iterator[tuple[bytes, float]]:
        """Cut the data as the toxics ask for; yields each piece with the pause after it in seconds."""
        chunking = Chunking(len(data))
        for active in self.toxics(stream):
            chunking = active.chunk(chunking)
        for start in range(0, len(data), chunking.size):
            piece = data[start : start + chunking.size]
            yield piece, chunking.pause_s + (len(piece) / chunking.rate if chunking.rate else 0.0)

    def _allowed(self, stream: str, size: int) -> int:
        limits = [active.bytes_left(self._passed.get(stream, 0)) for active in self.toxics(stream)]
        return min([size, *(limit for limit in limits if limit is not None)])

    async def _end(self, stream: str) -> None:
        for active in self.toxics(stream):
            if delay_s := active.end_delay_s():
                await asyncio.sleep(delay_s)
        with contextlib.suppress(OSError, RuntimeError):  # it is closed already
            self._writers[stream].write_eof()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def reset(self) -> None:
        for writer in self._writers.values():
            handle = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it is closed already
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """A proxy on a free port of the loopback."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.toxics: dict[str, ToxicType] = {}
        self._links: set[_Link] = set()
        self._count = 0
        self._server: asyncio.Server | None = None
        self.listening = 0
        self._resets: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen; on the same port as before where there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.listening, reuse_address=True, backlog=1024
        )
        self.listening = int(self._server.sockets[0].getsockname()[1])

    async def add(self, toxic: Toxic) -> tuple[int, int]:
        """Lay a toxic on open and new connections. Returns how many open ones it hits, of how many."""
        active = self.toxics[toxic.name] = TOXICS[toxic.type](toxic)
        hit, total = sum(link.hits(toxic) for link in self._links), len(self._links)
        if active.refuses and self._server is not None:
            self._server.close()
            self._server = None
            for link in list(self._links):
                active.hit.add(link.number)
                link.reset()
        for link in list(self._links):
            self._reset_later(link, active)
        return hit, total

    async def remove(self, name: str) -> int:
        """Remove a toxic; listen again where only that one prevented it. Returns how many connections met it."""
        active = self.toxics.pop(name, None)
        refused = any(other.refuses for other in self.toxics.values())
        if active is not None and active.refuses and not refused and self._server is None:
            await self.open()
        return len(active.hit) if active is not None else 0

    def _reset_later(self, link: _Link, active: ToxicType) -> None:
        delay_s = active.reset_after_s()
        if delay_s is not None and link.hits(active.toxic):
            task = asyncio.create_task(self._reset(link, active.toxic, delay_s))
            self._resets.add(task)
            task.add_done_callback(self._resets.discard)

    async def _reset(self, link: _Link, toxic: Toxic, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if (active := self.toxics.get(toxic.name)) is not None:
            active.hit.add(link.number)
            link.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        try:
            from_server, to_server = await asyncio.open_connection(self._host, self._port)
        except OSError:  # the server does not listen: the client gets a closed connection too
            writer.transport.abort()
            return
        link = _Link(self, self._count, {"upstream": to_server, "downstream": writer})
        self._links.add(link)
        for active in self.toxics.values():
            self._reset_later(link, active)
        try:
            await asyncio.gather(link.pump("upstream", reader), link.pump("downstream", from_server))
        except asyncio.CancelledError:  # the loop ends; streams would report it as a mistake
            link.reset()
        finally:
            self._links.discard(link)
            link.close()


async def _obey(host: str, port: int) -> None:
    proxy = Proxy(host, port)
    await proxy.open()
    _answer(ProxyAnswer(what="listening", port=proxy.listening))
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        order = json.loads(line)
        hit = total = 0
        try:
            if order["what"] == "add":
                hit, total = await proxy.add(Toxic(**order["toxic"]))
            else:
                hit = await proxy.remove(order["name"])
        except OSError as e:  # its port was taken while it was down
            _answer(ProxyAnswer(what="failed", why=str(e)))
            continue
        _answer(ProxyAnswer(what="done", hit=hit, total=total))


def _answer(answer: ProxyAnswer) -> None:
    sys.stdout.write(json.dumps(asdict(answer)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_obey(sys.argv[1], int(sys.argv[2])))
