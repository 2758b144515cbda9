"""Helpers for tests of the embedded server: a real server process."""

import base64
import functools
import http.client
import io
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest
from loadchaos.simulator.options import SimulatorSpec
from tests.embedded_server import EmbeddedServer
from tests.simulator.virtual_time import LoopResult, closed_loop

CAPTURES = Path(__file__).parent / "captures"


class Server(EmbeddedServer):
    """An embedded server that is asked on raw connections."""

    @property
    def core(self) -> psutil.Process:
        """The engine core process, found by its title as a monitor does."""
        children = psutil.Process(self.process.pid).children()
        return next(c for c in children if re.search("EngineCore|MPEngine", " ".join(c.cmdline())))

    def raw(
        self, method: str, path: str, body: str | bytes = b"", kind: str | None = "application/json"
    ) -> tuple[int, str]:
        """Send one request over a connection of its own; return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            data = body.encode() if isinstance(body, str) else body
            connection.request(method, path, data, {"content-type": kind} if kind else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> tuple[int, str]:
        return self.raw("POST", path, json.dumps(body))

    def get(self, path: str) -> tuple[int, str]:
        return self.raw("GET", path, kind=None)

    def chat(self, content: Any = "hi", **fields: Any) -> tuple[int, str]:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def chat_beside(self, **fields: Any) -> Future[tuple[int, str]]:
        """The same in a thread of its own."""
        return ThreadPoolExecutor(1).submit(self.chat, **fields)


Start = Callable[..., Server]


def run_requests(config: EngineConfig, *requests: EngineRequest) -> LoopResult:
    """Run these requests at once in an engine in virtual time."""
    return closed_loop(Engine(config), iter(requests), users=len(requests))


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    servers: list[Server] = []

    def begin(
        *,
        dialect: str = "vllm",
        era: str = "0.32",
        defects: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        **flags: object,
    ) -> Server:
        servers.append(Server.of(SimulatorSpec(dialect, era, defects, flags), env))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def shared(start: Start) -> Start:
    """The same server for the same options: for tests that leave it as it was."""
    return functools.cache(start)


@pytest.fixture(scope="session")
def captures() -> Path:
    return CAPTURES


Png = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def png() -> Png:
    """Make an image part of a message: a PNG as a data URL."""

    def make(width: int, height: int, color: int = 0, tail: bytes = b"") -> dict[str, Any]:
        buffer = io.BytesIO()
        Image.new("RGB", (width, height), (color % 256, color // 256 % 256, 7)).save(buffer, "PNG")
        url = "data:image/png;base64," + base64.b64encode(buffer.getvalue() + tail).decode()
        return {"type": "image_url", "image_url": {"url": url}}

    return make
