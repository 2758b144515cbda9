"""A server behind a tunnel is harmed only with leave, even where loadchaos launched the tunnel."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loadchaos.core.exit_codes import USER_ERROR
from tests.run.conftest import Start
from tests.waiting import until

RESETS = [{"admin": "reset_mm_cache", "every": "200ms"}]
TUNNEL = """
import socket, sys, threading
def copy(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    finally:
        for s in (a, b):
            try: s.shutdown(socket.SHUT_RDWR)
            except OSError: pass
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    client = listener.accept()[0]
    server = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    threading.Thread(target=copy, args=(client, server), daemon=True).start()
    threading.Thread(target=copy, args=(server, client), daemon=True).start()
"""


@dataclass
class Victim:
    """A server whose log says what reached it."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    port: int = 0

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "Uvicorn running on" in line:
                self.port = int(line.split("127.0.0.1:")[1].split()[0].rstrip("/"))

    @property
    def resets(self) -> int:
        return sum("reset_mm_cache HTTP" in line for line in self.lines)


@pytest.fixture
def victim() -> Iterator[Victim]:
    command = [sys.executable, "-m", "loadchaos.simulator.server", "--dialect", "vllm", "--era", "0.18", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = Victim(process)
    reader = threading.Thread(target=found.read, daemon=True)
    reader.start()
    try:
        until(lambda: found.port, "the port of the server")
        yield found
    finally:
        process.terminate()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.parametrize("name", ["tunnel.py", "vllm", "vllm_proxy"])
def test_launched_tunnel_needs_leave(start: Start, victim: Victim, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TUNNEL)
    port = free_port()
    launch = {
        "command": [sys.executable, str(tmp_path / name), str(port), str(victim.port)],
        "url": f"http://127.0.0.1:{port}",
    }
    run = start(target={"launch": launch}, attacks=RESETS)
    assert run.ends() == USER_ERROR
    assert f"--authorize 127.0.0.1:{port}" in run.output
    assert victim.resets == 0


def test_launched_tunnel_is_attacked_with_leave(start: Start, victim: Victim, tmp_path: Path) -> None:
    (tmp_path / "tunnel.py").write_text(TUNNEL)
    port = free_port()
    launch = {
        "command": [sys.executable, str(tmp_path / "tunnel.py"), str(port), str(victim.port)],
        "url": f"http://127.0.0.1:{port}",
    }
    run = start("--authorize", f"127.0.0.1:{port}", target={"launch": launch}, attacks=RESETS)
    run.ends()
    assert victim.resets > 0


def test_replica_beside_a_server_of_ours_needs_leave(start: Start, victim: Victim, tmp_path: Path) -> None:
    (tmp_path / "tunnel.py").write_text(TUNNEL)
    port = free_port()
    tunnel = subprocess.Popen([sys.executable, str(tmp_path / "tunnel.py"), str(port), str(victim.port)])
    try:
        target = {
            "embedded": {"dialect": "vllm", "era": "0.18"},
            "replicas": [{"name": "b", "url": f"http://127.0.0.1:{port}"}],
        }
        run = start(target=target, attacks=RESETS)
        assert run.ends() == USER_ERROR
        assert victim.resets == 0
    finally:
        tunnel.terminate()
        tunnel.wait()
