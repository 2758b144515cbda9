import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadchaos.run.ports import ReservedPort, announced_ports, foreign_listener, free_port, listening_ports


@contextlib.contextmanager
def listening(port: int, *, reserved: bool) -> Iterator[None]:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reserved:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", port))
        s.listen()
        yield


def test_reserved_port_is_refused_to_others_and_given_to_our_servers_one_after_the_other() -> None:
    held = ReservedPort()
    with pytest.raises(OSError, match="in use"), listening(held.port, reserved=False):
        pass
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", held.port), timeout=1)
        with listening(held.port, reserved=True):
            for _ in range(20):  # none goes to the socket that only holds the port
                socket.create_connection(("127.0.0.1", held.port), timeout=1).close()
    held.release()
    with listening(held.port, reserved=False):
        pass


def test_listener_is_foreign_unless_the_process_or_one_it_started_listens() -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    try:
        assert foreign_listener(url, other.pid) is None  # nobody listens
        with socket.create_server(("127.0.0.1", port)):
            found = foreign_listener(url, other.pid)
            assert found is not None
            assert found.pid == os.getpid()
            assert foreign_listener(url, os.getpid()) is None
            assert foreign_listener(url, os.getppid()) is None
    finally:
        other.kill()
        other.wait()


def test_listening_ports_are_those_of_a_process_and_what_it_started() -> None:
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        port = int(child.stdout.readline())
        assert listening_ports(child.pid) == [port]
        assert port in listening_ports(os.getpid())
    finally:
        child.communicate("\n")
    assert listening_ports(child.pid) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost", "[::]"])
def test_announced_ports_are_those_that_the_log_has_in_a_url(tmp_path: Path, host: str) -> None:
    """A stray request to a port of NCCL or torch.distributed may end the start of the server."""
    log = tmp_path / "server.log"
    with socket.create_server(("127.0.0.1", 0)) as api, socket.create_server(("127.0.0.1", 0)) as nccl:
        port, other = (s.getsockname()[1] for s in (api, nccl))
        assert announced_ports(os.getpid(), log) == []
        log.write_text(f"distributed_init_method=tcp://127.0.0.1:{other}\n")
        assert announced_ports(os.getpid(), log) == []
        with log.open("a") as file:
            file.write("x\n" * 2_000_000 + f"INFO: Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)\n")
        assert announced_ports(os.getpid(), log) == [port]
    assert announced_ports(os.getpid(), log) == []
