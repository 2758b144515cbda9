"""Fixtures: the web UI over a fake Locust, and a real `run --web`."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, jsonify
from flask.testing import FlaskClient
from flask_cors import CORS

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.writer import Writer
from loadchaos.load.locust_main import WEB_TOKEN_VARIABLE
from loadchaos.load.webui import extension
from tests.waiting import until

LINK_TOKEN = "of-the-link"
PORT = 8089


class Runner:
    state = "ready"
    stops = 0

    def stop(self) -> None:
        self.state = "stopped"
        self.stops += 1


class Hook:
    def __init__(self) -> None:
        self.listeners: list[Callable[..., None]] = []

    def add_listener(self, listener: Callable[..., None]) -> None:
        self.listeners.append(listener)


class Events:
    def __init__(self) -> None:
        self.test_stopping = Hook()


class FakeUi:
    """The part of locust.web.WebUI that is extended, with Locust's routes."""

    web_login = False
    port = PORT
    login_manager: Any = None

    def __init__(self, host: str, runner: Runner) -> None:
        self.host = host
        self.app = Flask("fake")
        CORS(self.app)
        self.template_args: dict[str, Any] = {}
        self.auth_args: Any = {}

        @self.app.route("/")
        def index() -> str:
            return "<html><body><div id=root></div></body></html>"

        @self.app.route("/swarm", methods=["POST"])
        def swarm() -> Any:
            runner.state = "running"
            return jsonify({"success": True})

        @self.app.route("/stats/requests")
        def stats() -> Any:
            return jsonify({"stats": [], "errors": [{"error": "a raw text"}]})

    def auth_required_if_enabled(self, view: Callable[..., Any]) -> Callable[..., Any]:
        return view


@dataclass
class Environment:
    web_ui: Any
    runner: Runner
    events: Events = field(default_factory=Events)


@dataclass
class Extended:
    """An extended UI, what it writes, and a session to tell it things."""

    home: Path
    session: Writer
    client: FlaskClient
    environment: Environment

    def write_session_row(self, what: str, **more: Any) -> None:
        self.session.write({"row": "session", "what": what, **more})

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.get("/loadchaos/state").get_json()
        return state

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, headers={"Host": f"127.0.0.1:{PORT}", **headers}, buffered=True)

    def post(self, path: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
        return self.client.post(path, headers={"Host": f"127.0.0.1:{PORT}", **(headers or {})}, buffered=True, **more)

    def token(self) -> str:
        found = re.search(r'"token": "([^"]+)"', self.get("/").get_data(as_text=True))
        assert found is not None
        return found[1]

    def run_begins(self) -> RunFolder:
        folder = RunFolder(self.home / "runs" / "small-1")
        folder.path.mkdir(parents=True)
        self.write_session_row("run", folder=str(folder.path))
        self.write_session_row("load", folder=str(folder.path))
        until(lambda: self.state()["phase"] == "load")
        return folder

    def load_ends(self) -> None:
        self.write_session_row("load_over")
        until(lambda: self.state()["phase"] == "judging")

    def commands(self, path: Path) -> list[dict[str, Any]]:
        return [{**row} for row in Tail(path).rows() if row["row"] == "command"]


@pytest.fixture
def ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Extended:
    monkeypatch.setenv(WEB_TOKEN_VARIABLE, LINK_TOKEN)
    runner = Runner()
    session = Writer(tmp_path / "session.jsonl", "test")
    target = "http://embedded-server"
    session.write({"row": "session", "what": "web", "profile": "small", "about": "x", "target": target, "users": 10})
    environment = Environment(FakeUi("127.0.0.1", runner), runner)
    extension.extend_web_ui(environment, tmp_path)
    client = environment.web_ui.app.test_client()
    client.get(f"/?token={LINK_TOKEN}", headers={"Host": f"127.0.0.1:{PORT}"})
    return Extended(tmp_path, session, client, environment)


# -- the real thing --------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "name": "small",
    "about": "short answers by ten users",
    "target": {"embedded": {"dialect": "vllm", "era": "0.18"}, "on_death": "restart"},
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"exact": 24}}],
    "load": [{"users": 10, "for": "10m"}],
    "limits": {"first_byte": "30s", "between_bytes": "30s", "total": "60s"},
}


@dataclass
class Session:
    """`loadchaos run --web` as a user starts it."""

    home: Path
    process: subprocess.Popen[bytes]

    @property
    def output(self) -> str:
        return (self.home / "out.txt").read_text()

    @property
    def url(self) -> str:
        return until(lambda: re.search(r"web UI: (http://\S+)", self.output), "the URL of the web UI")[1]

    def link(self, path: str) -> str:
        """URL of a path, with the session's token."""
        page, _, token = self.url.partition("?")
        return f"{page}{path}?{token}"

    def runs(self) -> list[Path]:
        return sorted(self.home.glob("runs/*"))

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> Session:
        (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
        with (tmp_path / "out.txt").open("wb") as out:
            argv = [sys.executable, "-m", "loadchaos", "run", "small.yaml", "--web", "--web-port", "0", "--no-live"]
            process = subprocess.Popen(
                [*argv, "--exporter-port", "0", *options], cwd=tmp_path, stdout=out, stderr=out, start_new_session=True
            )
        started.append(process)
        return Session(tmp_path, process)

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
