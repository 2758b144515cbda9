"""Helpers for tests of attacks: admin server, ledger rows, injector."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.injector import AttackInjector, AttackTarget
from loadchaos.core.ledger.rows import Emit
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import DIALECTS
from tests.http_server import Asked, answering

Row = dict[str, Any]


@dataclass
class AdminServer:
    """A server that answers POST paths as `answers` says.

    `slow_s` delays an answer; `asked` records all calls.
    """

    url: str = ""
    asked: list[tuple[str, str, dict[str, str], Any, dict[str, str]]] = field(default_factory=list)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    slow_s: dict[str, float] = field(default_factory=dict)

    def paths(self) -> list[str]:
        return [path for _, path, *_ in self.asked]

    def reply(self, asked: Asked) -> tuple[int, object]:
        parts = urlsplit(asked.path)
        path = parts.path if asked.method == "POST" else asked.path
        query = dict(parse_qsl(parts.query)) if asked.method == "POST" else {}
        self.asked.append((asked.method, path, query, asked.json(), asked.headers))
        if asked.method != "POST":
            return 405 if path in self.answers else 404, b'{"detail":"?"}' if asked.method == "GET" else b""
        self.queries[path] = parts.query
        time.sleep(self.slow_s.get(path, 0))
        return self.answers.get(path, (404, b'{"detail":"Not Found"}'))


@pytest.fixture
def server() -> Iterator[AdminServer]:
    one = AdminServer()
    with answering(one.reply) as one.url:
        yield one


def injector(specs: Sequence[Any], replica: AttackedReplica, emit: Emit = lambda _: None) -> AttackInjector:
    return AttackInjector(specs, AttackTarget(DIALECTS["vllm"], [replica]), emit, Redactor())
