"""A TCP proxy in a process of its own, with toxics that come and go: `python -m loadchaos.chaos.proxy HOST PORT`.

Says `{"what": "listening", "port": N}`, then obeys lines on standard input: `{"what": "add", "toxic": {...}}` and
`{"what": "remove", "name": ...}`, each answered. Ends with its standard input, and so with whoever started it.
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

from loadchaos.chaos.toxics import Toxic

_READ_BYTES = 16384
_QUEUE = 64  # pieces that may wait in a delay, before the sender is made to wait
_BLOCKED_LOOK_S = 0.05


class _OverError(Exception):
    """A toxic has ended this connection, in order."""


class _Link:
    """One client's connection with the one to the server; pieces wait in a queue, each with its time of arrival."""

    def __init__(self, proxy: Proxy, number: int, writers: dict[str, asyncio.StreamWriter]) -> None:
        self._proxy, self._number, self._writers = proxy, number, writers
        self._passed: dict[str, int] = {}

    def hits(self, toxic: Toxic) -> bool:
        """Whether this connection is one of the toxic's share; the same for the same seed."""
        return random.Random(f"{toxic.seed}/{toxic.name}/{self._number}").random() < toxic.share

    def toxics(self, stream: str, *kinds: str) -> Iterator[Toxic]:
        """Those in force now for this connection and direction."""
        for toxic in list(self._proxy.toxics.values()):
            if toxic.type in kinds and toxic.stream == stream and self.hits(toxic):
                yield toxic

    async def pump(self, stream: str, reader: asyncio.StreamReader) -> None:
        """Pass one direction on until it ends."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
        feeding = asyncio.create_task(self._read(reader, queue))
        try:
            while True:
                arrived, data = await queue.get()
                await self._delay(stream, arrived)
                if not data:
                    await self._end(stream)
                    return
                await self._blocked(stream)
                await self._pass(stream, data)
        except _OverError:
            self.close()
        except (ConnectionError, OSError):
            self.cut()
        finally:
            feeding.cancel()

    async def _read(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        while True:
            try:
                data = await reader.read(_READ_BYTES)
            except (ConnectionError, OSError):
                self.cut()
                return
            await queue.put((time.monotonic(), data))
            if not data:
                return

    async def _delay(self, stream: str, arrived: float) -> None:
        for toxic in self.toxics(stream, "latency"):
            jitter = toxic.attributes["jitter"]
            wait_ms = toxic.attributes["latency"] + random.uniform(-jitter, jitter)
            await asyncio.sleep(max(0.0, arrived + wait_ms / 1000 - time.monotonic()))

    async def _blocked(self, stream: str) -> None:
        """While nothing passes: wait for its end, or cut the connection when its time is over."""
        begin = time.monotonic()
        while toxic := next(self.toxics(stream, "timeout"), None):
            limit_ms = toxic.attributes["timeout"]
            if limit_ms and (time.monotonic() - begin) * 1000 >= limit_ms:
                raise _OverError
            await asyncio.sleep(_BLOCKED_LOOK_S)

    async def _pass(self, stream: str, data: bytes) -> None:
        for piece, wait_s in self._pieces(stream, data):
            allowed = self._allowed(stream, len(piece))
            self._writers[stream].write(piece[:allowed])
            await self._writers[stream].drain()
            self._passed[stream] = self._passed.get(stream, 0) + allowed
            if allowed < len(piece):
                raise _OverError
            if wait_s:
                await asyncio.sleep(wait_s)

    def _pieces(self, stream: str, data: bytes) -> Iterator[tuple[bytes, float]]:
        """The data in the pieces that bandwidth and slicer make of it, each with the pause behind it in seconds."""
        size, pause_s, rate = len(data), 0.0, 0.0
        for toxic in self.toxics(stream, "slicer"):
            spread = toxic.attributes["size_variation"]
            size = max(1, int(toxic.attributes["average_size"] + random.uniform(-spread, spread)))
            pause_s = toxic.attributes["delay"] / 1e6
        for toxic in self.toxics(stream, "bandwidth"):
            rate = max(toxic.attributes["rate"], 0.001) * 1024
            size = max(1, min(size, int(rate / 10)))  # ten pieces a second, or more
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            yield piece, pause_s + (len(piece) / rate if rate else 0.0)

    def _allowed(self, stream: str, size: int) -> int:
        limits = [int(t.attributes["bytes"]) - self._passed.get(stream, 0) for t in self.toxics(stream, "limit_data")]
        return max(0, min([size, *limits]))

    async def _end(self, stream: str) -> None:
        for toxic in self.toxics(stream, "slow_close"):
            await asyncio.sleep(toxic.attributes["delay"] / 1000)
        with contextlib.suppress(OSError, RuntimeError):  # it is closed already
            self._writers[stream].write_eof()

    def close(self) -> None:
        """End both connections in order."""
        for writer in self._writers.values():
            writer.close()

    def cut(self) -> None:
        """End both connections with a reset."""
        for writer in self._writers.values():
            handle = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it is closed already
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Listens on a free port of the loopback and passes connections on."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.toxics: dict[str, Toxic] = {}
        self._links: set[_Link] = set()
        self._count = 0
        self._server: asyncio.Server | None = None
        self.listening = 0
        self._later: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen, on the same port as before where there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.listening, reuse_address=True, backlog=1024
        )
        self.listening = int(self._server.sockets[0].getsockname()[1])

    async def add(self, toxic: Toxic) -> tuple[int, int]:
        """From now on, for the connections there are as for those that come: (how many it hits now, of how many)."""
        self.toxics[toxic.name] = toxic
        hit, there = sum(link.hits(toxic) for link in self._links), len(self._links)
        if toxic.type == "down" and self._server is not None:
            self._server.close()
            self._server = None
            for link in list(self._links):
                link.cut()
        elif toxic.type == "reset_peer":
            for link in list(self._links):
                self._reset_later(link, toxic)
        return hit, there

    async def remove(self, name: str) -> None:
        """The network is well again."""
        toxic = self.toxics.pop(name, None)
        down = any(t.type == "down" for t in self.toxics.values())
        if toxic is not None and toxic.type == "down" and not down and self._server is None:
            await self.open()

    def _reset_later(self, link: _Link, toxic: Toxic) -> None:
        if link.hits(toxic):
            task = asyncio.create_task(self._reset(link, toxic))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _reset(self, link: _Link, toxic: Toxic) -> None:
        await asyncio.sleep(toxic.attributes["timeout"] / 1000)
        if toxic.name in self.toxics:
            link.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        try:
            back, forth = await asyncio.open_connection(self._host, self._port)
        except OSError:  # nobody listens there: the client is to see just that
            writer.transport.abort()
            return
        link = _Link(self, self._count, {"upstream": forth, "downstream": writer})
        self._links.add(link)
        for toxic in self.toxics.values():
            if toxic.type == "reset_peer":
                self._reset_later(link, toxic)
        try:
            await asyncio.gather(link.pump("upstream", reader), link.pump("downstream", back))
        except asyncio.CancelledError:  # the loop ends; streams would report it as a mistake
            link.cut()
        finally:
            self._links.discard(link)
            link.close()


async def _obey(host: str, port: int) -> None:
    proxy = Proxy(host, port)
    await proxy.open()
    _say({"what": "listening", "port": proxy.listening})
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        order = json.loads(line)
        hit = there = 0
        try:
            if order["what"] == "add":
                hit, there = await proxy.add(Toxic(**order["toxic"]))
            else:
                await proxy.remove(order["name"])
        except OSError as e:  # its port was taken while it was down
            _say({"what": "failed", "why": str(e)})
            continue
        _say({"what": "done", "hit": hit, "there": there})


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_obey(sys.argv[1], int(sys.argv[2])))
