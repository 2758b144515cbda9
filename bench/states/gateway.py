"""Gateway in a thread: only `/v1` of the server behind it is reachable.

It answers `/health` itself, always with 200, and the server's metrics, version and processes are hidden, as behind many
balancers. A server that does not accept connections gives 502.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

_READ_BYTES = 1 << 16


class ApiGateway(threading.Thread):
    """Gateway at `url` to a port of this machine; a context manager."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self.url = ""

    def __enter__(self) -> ApiGateway:
        self.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()
        self._loop.close()

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1]
        if not path.startswith(b"/v1/"):
            await _say(writer, b"200 OK" if path == b"/health" else b"404 Not Found")
            return
        try:
            behind, there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            await _say(writer, b"502 Bad Gateway")
            return
        lines = [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(b"connection:")]
        there.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
        upward = asyncio.ensure_future(_copy(reader, there))  # the body, and the end of a client that hangs up
        try:
            await _copy(behind, writer)
        finally:
            upward.cancel()
            there.close()


async def _say(writer: asyncio.StreamWriter, status: bytes) -> None:
    writer.write(b"HTTP/1.1 " + status + b"\r\nServer: gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    if not writer.is_closing():
        writer.close()
