"""Fixtures for real servers, shared where tests do not harm them."""

import contextlib
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.http_server import Asked, Handler, serving
from tests.real import servers
from tests.real.servers import PROJECT, Command
from tests.waiting import until
from tests.warm_command import outside_ci

READY_S = 600.0
RANDOM_WEIGHTS = [
    {"id": name, "because": "random weights", "until": "2099-01-01"} for name in ("answers_not_judged", "answers_equal")
]
"""`accept` of the profiles: such a model answers no question right, and a fake engine gives each prompt the same text."""


@dataclass(frozen=True)
class Server:
    url: str
    log: Path


def skipping(make: Callable[..., Command]) -> Callable[..., Command]:
    """The same, but a server that is not installed skips the test."""

    def made(*args: Any, **kwargs: Any) -> Command:
        try:
            return make(*args, **kwargs)
        except servers.NotInstalledError as e:
            pytest.skip(str(e))

    return made


vllm_032, vllm_032_mtp = skipping(servers.vllm_032), skipping(servers.vllm_032_mtp)
vllm_032_topk, vllm_0221_mtp = skipping(servers.vllm_032_topk), skipping(servers.vllm_0221_mtp)
lmdeploy_018 = skipping(servers.lmdeploy_018)


@contextlib.contextmanager
def running(command: Command, log: Path) -> Iterator[Server]:
    with log.open("wb") as f:
        process = subprocess.Popen(
            command.argv, env={**os.environ, **command.env}, stdout=f, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until_healthy(command.url, process, log)
        yield Server(command.url, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended: {log.read_text(errors='replace')[-2000:]}"
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=3) as answer:
            if answer.status == 200:
                assert listens(url, process.pid), f"the server that answers at {url} is not the one that was started"
                return
        time.sleep(0.3)
    raise AssertionError(f"{url} was not healthy within {READY_S:g} s")


def listens(url: str, session: int) -> bool:
    """True when a process of this pid's session listens there."""
    for process in listeners(url):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                return True
    return False


@pytest.fixture(scope="session")
def shared_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(vllm_032(), tmp_path_factory.mktemp("vllm") / "vllm.log") as server:
        yield server


@pytest.fixture(scope="session")
def shared_lmdeploy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(lmdeploy_018("--blocks", "21", "--vlm"), tmp_path_factory.mktemp("lmdeploy") / "l.log") as server:
        yield server


@contextlib.contextmanager
def gateway(url: str, *paths: str) -> Iterator[str]:
    """Address of a gateway that lets only these paths through."""

    class Through(Handler):
        def reply(self, asked: Asked) -> None:
            if self.path not in paths:
                self.send_error(404)
                return
            behind = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
            behind.request(self.command, self.path, asked.content, {"Content-Type": "application/json"})
            answer = behind.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while data := answer.read1():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
            behind.close()

    with serving(Through) as address:
        yield address


@dataclass(frozen=True)
class RunOutput:
    code: int
    output: str
    verdict: dict[str, Any]
    folder: Path

    @property
    def failures(self) -> dict[str, dict[str, Any]]:
        """The failures that the profile does not accept."""
        return {f["id"]: f for f in self.verdict.get("failures", []) if not f["accepted"]}

    @property
    def facts(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "facts.json").read_text()))

    def check(self, name: str) -> str:
        return next(str(c["actual"]) for c in self.verdict["checks"] if c["name"] == name)

    def open_checks(self) -> set[str]:
        return {str(c["name"]) for c in self.verdict["checks"] if c["verdict"] != "pass"}


Run = Callable[..., RunOutput]


@pytest.fixture
def loadchaos(tmp_path: Path) -> Run:
    """Runs `loadchaos run` with a shipped profile or a mapping."""

    def run(profile: str | Mapping[str, Any], *args: str) -> RunOutput:
        if not isinstance(profile, str):
            path = tmp_path / "profile.yaml"
            path.write_text(json.dumps({"accept": RANDOM_WEIGHTS, **profile}))  # JSON is YAML
            profile = str(path)
        else:
            args = ("--set", f"accept={json.dumps(RANDOM_WEIGHTS)}", *args)
        done = subprocess.run(
            [sys.executable, "-m", "loadchaos", "run", profile, "--no-live", "--exporter-port", "0", *args], cwd=tmp_path,
            capture_output=True, text=True, timeout=1200, check=False,
            env=outside_ci(),
        )  # fmt: skip
        found = sorted(tmp_path.glob("runs/*/verdict.json"))
        assert found, done.stderr
        return RunOutput(
            done.returncode, done.stdout + done.stderr, json.loads(found[-1].read_text()), found[-1].parent
        )

    return run


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed loadchaos-vllm, outside the server's environment."""
    place = tmp_path_factory.mktemp("plugin")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--target", str(place), str(PROJECT / "plugins/vllm")], check=True, timeout=300)
    return place


def wait_for_requests(home: Path) -> None:
    """Return when the run in this folder has begun its first request."""
    begun = "runs/*/requests-0.jsonl"
    until(lambda: any(b'"begin"' in p.read_bytes() for p in home.glob(begun)), "the first request", 900)


def listeners(url: str) -> list[psutil.Process]:
    """The processes that listen at the port of a URL."""
    port = urlsplit(url).port
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    pids = {c.pid for c in listening if c.laddr and c.laddr.port == port and c.pid is not None}
    return [psutil.Process(pid) for pid in pids]


@contextlib.contextmanager
def under_load(home: Path, act: Callable[[], object]) -> Iterator[None]:
    """Call a function six seconds after the first request of the run in the block began."""

    def wait_and_act() -> None:
        wait_for_requests(home)
        time.sleep(6)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join()


def at(server: Server) -> tuple[str, ...]:
    """The options that lead to a server which runs already."""
    return ("--target", server.url, "--server-log", str(server.log))


def on(server: Server) -> tuple[str, ...]:
    """The same, and it may be harmed."""
    return (*at(server), "--authorize", server.url.removeprefix("http://"))


def typed(command: Command) -> tuple[str, ...]:
    """The options that start this server as a person would."""
    words = [*(f"{name}={value}" for name, value in command.env.items()), *command.argv]
    return ("--launch", shlex.join(words))


def launch(command: Command, **target: Any) -> dict[str, Any]:
    """The `target` of a profile that starts this server."""
    started = {"command": list(command.argv), "env": dict(command.env), "url": command.url, "ready_within": "10m"}
    return {"launch": started, "on_death": "stop", **target}
