"""A server behind a tunnel is harmed only with leave, even where loadchaos launched the tunnel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadchaos.core.exit_codes import USER_ERROR
from tests.embedded_server import EmbeddedServer
from tests.run.conftest import Start, StartSim, embedded_target

RESETS = [{"admin": "reset_mm_cache", "every": "200ms"}]


@pytest.fixture
def victim(sim: StartSim) -> EmbeddedServer:
    """A server whose log says what reached it."""
    return sim("--dialect", "vllm", "--era", "0.18")


def resets(victim: EmbeddedServer) -> int:
    return victim.text.count("reset_mm_cache HTTP")


def tunnel(folder: Path, port: int, victim: EmbeddedServer, name: str = "tunnel.py") -> list[str]:
    shutil.copy(Path(__file__).with_name("gateway.py"), folder / name)
    return [sys.executable, str(folder / name), str(victim.port), str(port)]


@pytest.mark.parametrize("name", ["tunnel.py", "vllm"])
def test_launched_tunnel_needs_leave(
    start: Start, victim: EmbeddedServer, tmp_path: Path, name: str, unused_port: int
) -> None:
    launch = {"command": tunnel(tmp_path, unused_port, victim, name), "url": f"http://127.0.0.1:{unused_port}"}
    run = start(target={"launch": launch}, attacks=RESETS)
    assert run.ends() == USER_ERROR
    assert f"--authorize 127.0.0.1:{unused_port}" in run.output
    assert resets(victim) == 0


def test_launched_tunnel_is_attacked_with_leave(
    start: Start, victim: EmbeddedServer, tmp_path: Path, unused_port: int
) -> None:
    launch = {"command": tunnel(tmp_path, unused_port, victim), "url": f"http://127.0.0.1:{unused_port}"}
    run = start("--authorize", f"127.0.0.1:{unused_port}", target={"launch": launch}, attacks=RESETS)
    run.ends()
    assert resets(victim) > 0


def test_replica_beside_a_server_of_ours_needs_leave(
    start: Start, victim: EmbeddedServer, tmp_path: Path, unused_port: int
) -> None:
    process = subprocess.Popen(tunnel(tmp_path, unused_port, victim))
    try:
        replicas = [{"name": "b", "url": f"http://127.0.0.1:{unused_port}"}]
        run = start(target={**embedded_target(), "replicas": replicas}, attacks=RESETS)
        assert run.ends() == USER_ERROR
        assert resets(victim) == 0
    finally:
        process.terminate()
        process.wait()
