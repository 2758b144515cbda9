"""Helpers for tests of attacks: admin server, ledger rows, injector."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.injector import AttackInjector, AttackTarget
from loadchaos.core.ledger.rows import Emit
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import DIALECTS

Row = dict[str, Any]


class Rows(list[Any]):
    """Ledger rows in the order they were emitted."""

    def of(self, **fields: Any) -> list[Row]:
        """Rows with these values."""
        return [r for r in self if all(r.get(k) == v for k, v in fields.items())]

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        """Wait until a condition is true."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"never came true; rows: {self[-20:]}"
            await asyncio.sleep(0.01)


class AdminServer(ThreadingHTTPServer):
    """A server that answers POST paths as `answers` says.

    `slow_s` delays an answer; `asked` records all calls.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[tuple[str, str, dict[str, str], Any, dict[str, str]]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.queries: dict[str, str] = {}
        self.slow_s: dict[str, float] = {}

    def paths(self) -> list[str]:
        return [path for _, path, *_ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: AdminServer

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body = json.loads(raw) if raw else None
        self.server.asked.append(("POST", parts.path, dict(parse_qsl(parts.query)), body, dict(self.headers)))
        self.server.queries[parts.path] = parts.query
        time.sleep(self.server.slow_s.get(parts.path, 0))
        self._answer(*self.server.answers.get(parts.path, (404, b'{"detail":"Not Found"}')))

    def do_GET(self) -> None:
        self.server.asked.append(("GET", self.path, {}, None, dict(self.headers)))
        known = self.path in self.server.answers
        self._answer(405 if known else 404, b'{"detail":"?"}')

    def do_OPTIONS(self) -> None:
        self.server.asked.append(("OPTIONS", self.path, {}, None, dict(self.headers)))
        self._answer(405 if self.path in self.server.answers else 404, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def server() -> Iterator[AdminServer]:
    one = AdminServer()
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield one
    one.shutdown()
    one.server_close()
    thread.join()


def injector(specs: Sequence[Any], replica: AttackedReplica, emit: Emit = lambda _: None) -> AttackInjector:
    """An injector of these attacks on one vLLM replica."""
    return AttackInjector(specs, AttackTarget(DIALECTS["vllm"], [replica]), emit, Redactor())
