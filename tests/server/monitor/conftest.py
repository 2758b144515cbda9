"""Fixtures: a small HTTP server with changeable pages, and a list of rows."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadchaos.run.ports import free_port

Row = dict[str, Any]


class SmallServer:
    """Answer GETs from `pages` (path -> status, body); `hang` answers nothing."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, bytes]] = {"/health": (200, b"")}
        self.hang = False
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.raw: bytes | None = None
        self._server: asyncio.Server | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split(" ")[1]
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:]) if k}
            self.requests.append((path, headers))
            while self.hang:  # noqa: ASYNC110 - a test sets a plain flag, which reads better there
                await asyncio.sleep(0.02)
            status, body = self.pages.get(path, (404, b'{"detail":"Not Found"}'))
            answer = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            writer.write(self.raw if self.raw is not None else answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):  # a connect probe sends nothing
            pass
        finally:
            writer.close()


@pytest.fixture
def server() -> SmallServer:
    return SmallServer()


def append(path: Path, text: str) -> None:
    with path.open("a") as f:
        f.write(text)
