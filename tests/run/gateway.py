"""A gateway of the tests: forwards each connection, and answers 502 where nobody listens behind it."""

import asyncio
import sys

BAD_GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 11\r\nConnection: close\r\n\r\nBad Gateway"
)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes until one side ends."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def serve(upstream_port: int) -> None:
    """Forward connections of a free port to another one, for ever."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind, there = await asyncio.open_connection("127.0.0.1", upstream_port)
        except OSError:
            await reader.read(65536)
            writer.write(BAD_GATEWAY)
            writer.close()
            return
        await asyncio.gather(copy(reader, there), copy(behind, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
