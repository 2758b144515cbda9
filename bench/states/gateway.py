"""Gateway in a process: only `/v1` of the server behind it is reachable.

It answers `/health` itself, always with 200, and the server's metrics, version and processes are hidden, as behind many
balancers. A server that does not accept connections gives 502.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

_READ_BYTES = 1 << 16
_PROJECT = Path(__file__).parents[2]


class ApiGateway:
    """Gateway at `url` to a port of this machine, in a process of its own; a context manager.

    A run sees the processes below the one that listens, so that ours must not be the parent of the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""

    def __enter__(self) -> ApiGateway:
        argv = [sys.executable, "-m", "bench.states.gateway", str(self._port)]
        self._process = subprocess.Popen(argv, cwd=_PROJECT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


async def _serve(port: int) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await _answer(reader, writer, port)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    path = head.split(b" ", 2)[1]
    if not path.startswith(b"/v1/"):
        await _say(writer, b"200 OK" if path == b"/health" else b"404 Not Found")
        return
    try:
        behind, there = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        await _say(writer, b"502 Bad Gateway")
        return
    lines = [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(b"connection:")]
    there.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
    upward = asyncio.ensure_future(_copy(reader, there))  # the body, and the end of a client that hangs up
    try:
        status = await behind.readuntil(b"\r\n")
        writer.write(status + b"Connection: close\r\n")  # not every server says so itself
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


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
