"""A gateway of the tests: forwards each connection, and answers 502 where nobody listens behind it.

gateway.py UPSTREAM_PORT [PORT [CERTIFICATE]]: on a free port for 0, with TLS where a certificate is given. A certificate
file that changes is read again, and all connections end, as at a reload of nginx.
"""

import asyncio
import ssl
import sys
from pathlib import Path

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


async def serve(upstream_port: str, port: str = "0", certificate: str | None = None) -> None:
    """Forward connections of one port to another one, for ever."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

    writers = set[asyncio.StreamWriter]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind, there = await asyncio.open_connection("127.0.0.1", int(upstream_port))
        except OSError:
            await reader.read(65536)
            writer.write(BAD_GATEWAY)
            writer.close()
            return
        writers.add(writer)
        await asyncio.gather(copy(reader, there), copy(behind, writer))
        writers.discard(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", int(port), ssl=context)
    found = server.sockets[0].getsockname()[1]
    print(f"https://localhost:{found}" if certificate else f"http://127.0.0.1:{found}", flush=True)
    while certificate is None or context is None:
        await server.serve_forever()
    known = await asyncio.to_thread(Path(certificate).read_bytes)
    while True:
        await asyncio.sleep(0.1)
        if (now := await asyncio.to_thread(Path(certificate).read_bytes)) != known:
            known = now
            context.load_cert_chain(certificate)
            for writer in writers:
                writer.transport.abort()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
