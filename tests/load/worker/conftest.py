"""Fixtures.

A small streaming server, and the real Locust child against it.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pytest

from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json
from loadchaos.load.wire.request import Request
from loadchaos.load.worker.worker_plan import WorkerPlan
from loadchaos.profile.run_plan import RunPlan
from tests.http_server import Asked, Handler, serving

LOCUSTFILE = Path(__file__).parents[3] / "loadchaos" / "load" / "locustfile.py"
Row = dict[str, Any]


@dataclass
class Server:
    """A server that sends `tokens` tokens per request, `gap_s` apart.

    It holds answers back while `hold` is set.
    """

    url: str = ""
    tokens: int = 4
    gap_s: float = 0.0
    refuse: str | None = None
    hold: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    ledger: Path | None = None
    unwritten: list[str] = field(default_factory=list)
    """Requests whose begin row was not in the `ledger` when they were read here."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()

    class Streaming(Handler):
        def reply(self, asked: Asked) -> None:
            server.headers.append(asked.headers)
            server.paths.append(self.path)
            mine = self.headers["X-Request-Id"]
            if server.ledger is not None and mine.encode() not in server.ledger.read_bytes():
                server.unwritten.append(mine)
            if server.refuse is not None:
                self.answer(401, {"error": {"message": server.refuse, "code": 401}})
                return
            self.begin_stream()
            while server.hold.is_set() and not server.closing.is_set():
                time.sleep(0.01)
            for n in range(server.tokens):
                finish = "stop" if n + 1 == server.tokens else None
                self.event({"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": finish}]})
                server.closing.wait(server.gap_s)
            self.event({"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": server.tokens}})
            self.end_stream()

    with serving(Streaming) as server.url:
        yield server
        server.closing.set()


TRAFFIC: list[Row] = [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 8}}]


def planned(
    folder: Path,
    traffic: list[Row] = TRAFFIC,
    *,
    dialect: str = "vllm",
    worker: int = 0,
    workers: int = 1,
    key: str | None = None,
    **parts: Any,
) -> WorkerPlan:
    """The plan of a worker, whose profile has this traffic and these parts. `key`: API key of its requests."""
    url = "http://127.0.0.1:1"
    profile = {"name": "t", "traffic": traffic, "load": [{"users": 1, "requests": 100}], **parts}
    plan = {"profile": profile, "seed": 1, "base_url": url, "folder": str(folder), "workers": workers}
    plan |= {"api_key_env": "THE_KEY"} if key else {}
    return WorkerPlan(from_json(RunPlan, plan), Facts(url, url, dialect, "m"), worker, {"THE_KEY": key} if key else {})


def first_requests(plan: WorkerPlan, n: int) -> list[Request]:
    return [plan.build_request(step) for step in islice(next(iter(plan.phases()))[1], n)]


class Served(Protocol):
    @property
    def url(self) -> str: ...


@dataclass
class Child:
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def plan(self, server: Served, load: list[Row], **more: Any) -> None:
        profile = {"name": "t", "traffic": more.pop("traffic", TRAFFIC), "load": load, **more.pop("profile", {})}
        plan = {
            "profile": profile, "seed": 1, "base_url": server.url, "api_key_env": None, "headers": {},
            "folder": str(self.folder), "workers": 1, **more,
        }  # fmt: skip
        facts = {"base_url": server.url, "admin_url": server.url, "dialect": "vllm", "model": "m"}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        (self.folder / "facts.json").write_text(json.dumps(facts))

    def start(
        self, *args: str, env: dict[str, str] | None = None, through_parent: bool = False
    ) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", *args]
        if "--processes" in args:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port = str(listener.getsockname()[1])
            argv += ["--master-bind-port", port, "--master-port", port]
        if through_parent:  # a process in between, which can be killed as `loadchaos run` can
            argv = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *argv]
        environment = {**os.environ, "LOADCHAOS_PLAN": str(self.folder / "plan.json"), **(env or {})}
        with (self.folder / "locust.log").open("wb") as log:
            self.process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self.process

    def wait(self, within_s: float = 30.0) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def run(self, *args: str, env: dict[str, str] | None = None) -> int:
        self.start(*args, env=env)
        return self.wait()

    def control(self, what: str, **more: Any) -> None:
        with (self.folder / "control.jsonl").open("a") as f:
            f.write(
                json.dumps({"row": "control", "at_ns": time.monotonic_ns(), "what": what, "why": "", **more}) + "\n"
            )

    def rows(self, *kinds: str, worker: int = 0) -> list[Row]:
        path = self.folder / f"requests-{worker}.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [row for row in map(json.loads, lines) if not kinds or row["row"] in kinds]

    def log(self) -> str:
        return (self.folder / "locust.log").read_text()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    it = Child(tmp_path)
    yield it
    if it.process is not None and it.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            it.process.kill()
        it.process.wait()
