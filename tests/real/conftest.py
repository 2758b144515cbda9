"""Real servers, started once and shared where nothing hurts them; skipped with the reason where they are not installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(os.environ.get("LOADCHAOS_REAL", "~/.cache/loadchaos")).expanduser()
PROJECT = Path(__file__).parent.parent.parent
READY_S = 600.0


@dataclass(frozen=True)
class Command:
    """What starts a server, and where it listens."""

    argv: Sequence[str]
    env: Mapping[str, str]
    url: str


@dataclass(frozen=True)
class Server:
    """A running server and its log."""

    url: str
    log: Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def vllm(
    version: str, *flags: str, env: Mapping[str, str], model: str = "tiny-qwen3-vl", length: int = 4096
) -> Command:
    """A vLLM on the CPU; skips where that version is not installed."""
    home = ROOT / f"vllm-{version}"
    if not (home / "bin/vllm").is_file() or not (ROOT / "models" / model).is_dir():
        pytest.skip(f"vLLM {version} is not installed in {home}: scripts/real/install.sh vllm-{version}")
    port = free_port()
    argv = [
        str(home / "bin/vllm"), "serve", str(ROOT / "models" / model), "--host", "127.0.0.1", "--port", str(port),
        "--load-format", "dummy", "--served-model-name", "tiny", "--max-model-len", str(length), "--enforce-eager", *flags,
    ]  # fmt: skip
    environment = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "VLLM_SERVER_DEV_MODE": "1", **env,
    }  # fmt: skip
    return Command(argv, environment, f"http://127.0.0.1:{port}")


def vllm_032(**env: str) -> Command:
    """vLLM 0.32.0 with images, as most tests want it."""
    return vllm(
        "0.32.0", "--limit-mm-per-prompt", '{"image":2,"video":0}', "--max-num-seqs", "64",
        "--max-num-batched-tokens", "2048", env=env,
    )  # fmt: skip


def lmdeploy_018(*flags: str, **env: str) -> Command:
    """LMDeploy's own HTTP layer over the stand-in engine; skips where it is not installed."""
    python = ROOT / "lmdeploy-0.18.0/bin/python"
    if not python.is_file():
        pytest.skip(
            f"LMDeploy 0.18.0 is not installed in {python.parent.parent}: scripts/real/install.sh lmdeploy-0.18.0"
        )
    port = free_port()
    script = str(PROJECT / "scripts/real/run_lmdeploy.py")
    argv = [str(python), script, "--port", str(port), "--session-len", "8192", "--log-level", "INFO", *flags]
    return Command(argv, env, f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def running(command: Command, log: Path) -> Iterator[Server]:
    """The server, healthy; its whole process group is ended afterwards."""
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
                return
        time.sleep(0.3)
    raise AssertionError(f"{url} was not healthy within {READY_S:g} s")


@pytest.fixture(scope="session")
def shared_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(vllm_032(), tmp_path_factory.mktemp("vllm") / "vllm.log") as server:
        yield server


@pytest.fixture(scope="session")
def shared_lmdeploy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(lmdeploy_018("--blocks", "21", "--vlm"), tmp_path_factory.mktemp("lmdeploy") / "l.log") as server:
        yield server


@dataclass(frozen=True)
class Told:
    """What a run came to."""

    code: int
    output: str
    verdict: dict[str, Any]

    @property
    def failures(self) -> dict[str, dict[str, Any]]:
        return {f["id"]: f for f in self.verdict.get("failures", [])}

    def check(self, name: str) -> str:
        return next(str(c["actual"]) for c in self.verdict["checks"] if c["name"] == name)


@pytest.fixture
def loadchaos(tmp_path: Path) -> Callable[..., Told]:
    """Runs `loadchaos run PROFILE ...` in a folder of its own; PROFILE is a name or a mapping."""

    def run(profile: str | Mapping[str, Any], *args: str) -> Told:
        if not isinstance(profile, str):
            path = tmp_path / "profile.yaml"
            path.write_text(json.dumps(profile))  # JSON is YAML
            profile = str(path)
        done = subprocess.run(
            [sys.executable, "-m", "loadchaos", "run", profile, "--no-live", "--exporter-port", "0", *args], cwd=tmp_path,
            capture_output=True, text=True, timeout=1200, check=False,
            env={k: v for k, v in os.environ.items() if k != "CI"},
        )  # fmt: skip
        found = sorted(tmp_path.glob("runs/*/verdict.json"))
        assert found, done.stderr
        return Told(done.returncode, done.stdout + done.stderr, json.loads(found[-1].read_text()))

    return run


def launch(command: Command, **target: Any) -> dict[str, Any]:
    """The `target` of a profile that starts this server."""
    started = {"command": list(command.argv), "env": dict(command.env), "url": command.url, "ready_within": "10m"}
    return {"launch": started, "on_death": "stop", **target}
