"""Helpers for tests of toxics: a proxy before an echo server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from loadchaos.chaos.proxy import Proxy
from loadchaos.chaos.toxics import Toxic, parse_toxic

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Client]]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, Connect]]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    proxy = Proxy("127.0.0.1", server.sockets[0].getsockname()[1])
    await proxy.open()
    clients: list[asyncio.StreamWriter] = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.listening)
        clients.append(writer)
        return reader, writer

    try:
        yield proxy, connect
    finally:
        for writer in clients:
            writer.close()
        if proxy._server is not None:
            proxy._server.close()
        server.close()
        await asyncio.sleep(0.05)  # the links see their ends


def toxic_of(kind: str, **params: object) -> Toxic:
    return parse_toxic(kind, kind, params)


async def echoed(client: Client, data: bytes = b"hello") -> bytes:
    client[1].write(data)
    return await asyncio.wait_for(client[0].readexactly(len(data)), 5)
