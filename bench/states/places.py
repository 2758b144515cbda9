"""Set up the servers of a measurement: launched, lossy path, balanced."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import psutil

from bench.states.faults import SLOTS
from bench.states.paths import Path
from loadchaos.run.ports import free_port
from tests.real import servers

_READY_S = 30.0


class Server:
    """An embedded server of the measurement; external for the run."""

    def __init__(self, log: File) -> None:
        self.port, self.log = free_port(), log
        self._process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "loadchaos.simulator.server", "--dialect", "vllm", "--era", "0.18"]
        with self.log.open("ab") as log:
            process = subprocess.Popen([*argv, "--port", str(self.port)], stdout=log, stderr=log)
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2):
                return process
            time.sleep(0.05)
        raise RuntimeError(f"the embedded server did not start: {self.log.read_text()}")

    def kill_engine(self) -> None:
        for child in psutil.Process(self._process.pid).children():
            child.send_signal(signal.SIGKILL)

    def restart(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._process = self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Place:
    """Setup of a measurement.

    It holds the `target` of the profile, options of `loadchaos run`, and what the fault may act on.
    """

    target: Mapping[str, Any]
    options: tuple[str, ...] = ()
    servers: list[Server] = field(default_factory=list)
    path: Path | None = None


def _launched(command: servers.Command, **env: str) -> Place:
    started = {"command": list(command.argv), "env": {**command.env, **env}, "url": command.url, "ready_within": "10m"}
    return Place({"launch": started, "on_death": "wait"})


@contextlib.contextmanager
def place(kind: str, server: str, home: File) -> Iterator[Place]:
    """Set up a place (`alone` `mtp` `lossy` `balanced` `hidden`) for a fault.

    Raises NotInstalledError where it is not installed.
    """
    if kind == "mtp":
        yield _launched(servers.vllm_032_mtp())
    elif kind == "alone" and server == "vllm":
        plugin = str(servers.PROJECT / "plugins/vllm")
        yield _launched(
            servers.vllm_032(PYTHONPATH=_plugin(home, plugin), LOADCHAOS_SABOTAGE_TRIGGER=str(home / "trigger"))
        )
    elif kind == "alone" and server == "lmdeploy":
        quick = {
            f"LMDEPLOY_HEALTH_{k}": v
            for k, v in (("POLL_INTERVAL", "3"), ("PROBE_TIMEOUT", "2"), ("UNHEALTHY_AFTER", "6"))
        }
        yield _launched(servers.lmdeploy_018("--blocks", "256", "--max-batch-size", str(SLOTS), **quick))
    elif kind == "alone":
        yield Place({"embedded": {"dialect": "vllm", "era": "0.18"}, "on_death": "wait"}, ("--embedded",))
    else:
        with _behind_a_path(1 if kind == "lossy" else 3, home, named=kind == "balanced") as found:
            yield found


def _plugin(home: File, source: str) -> str:
    """Install loadchaos-vllm in a folder beside the server's environment."""
    to = home / "plugin"
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        "--target",
        str(to),
        source,
    ]
    subprocess.run(argv, check=True, timeout=120, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    return str(to)


@contextlib.contextmanager
def _behind_a_path(n: int, home: File, *, named: bool) -> Iterator[Place]:
    started = [Server(home / f"server-{name}.log") for name in "abc"[:n]]
    path = Path([s.port for s in started])
    path.start()
    address = path.url.removeprefix("http://")
    options = ["--target", path.url, "--authorize", address, "--shared"]
    target: dict[str, Any] = {"on_death": "wait"}
    if named:
        target["replicas"] = [
            {"name": name, "url": s.url, "log": str(s.log)} for name, s in zip("abc", started, strict=False)
        ]
    else:
        options += [word for s in started for word in ("--server-log", str(s.log))]
    try:
        yield Place(target, tuple(options), started, path)
    finally:
        path.close()
        for s in started:
            s.close()
