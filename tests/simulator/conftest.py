"""Helpers for tests of the embedded server: a real server process."""

import base64
import http.client
import io
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from loadchaos.simulator.command import command
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest
from loadchaos.simulator.options import SimulatorSpec
from tests.simulator.virtual_time import LoopResult, closed_loop

CAPTURES = Path(__file__).parent / "captures"


class Server:
    def __init__(self, argv: list[str], env: dict[str, str] | None = None) -> None:
        self.log: list[str] = []
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.port = 0
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(15), f"not up: {''.join(self.log)}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            if found := re.search(r"Uvicorn running on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
                self._ready.set()
        self._ready.set()

    @property
    def text(self) -> str:
        return "".join(self.log)

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

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(60)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()


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
        argv = command(SimulatorSpec(dialect, era, defects, flags), port=0)
        servers.append(Server(argv, env))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def captures() -> Path:
    return CAPTURES


@pytest.fixture(scope="session")
def png() -> Callable[..., dict[str, Any]]:
    """Make an image part of a message: a PNG as a data URL."""

    def make(width: int, height: int, color: int = 0, tail: bytes = b"") -> dict[str, Any]:
        buffer = io.BytesIO()
        Image.new("RGB", (width, height), (color % 256, color // 256 % 256, 7)).save(buffer, "PNG")
        url = "data:image/png;base64," + base64.b64encode(buffer.getvalue() + tail).decode()
        return {"type": "image_url", "image_url": {"url": url}}

    return make
