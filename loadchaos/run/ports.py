"""TCP ports of this machine: free, reserved, or taken by another process."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path

import psutil

from loadchaos.chaos.listeners import Listener, listeners
from loadchaos.core.urls import host_and_port

_URL = re.compile(rb"https?://(?:\[[^\]\s]*\]|[^\s:/\[\]]+):(\d{1,5})\b")
_READ_BYTES = 1 << 20


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def bindable_port(host: str, port: int) -> int:
    """Port of an address that a server may listen on, or a free one for 0. Raises OSError where it is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("" if host == "*" else host, port))
        return int(s.getsockname()[1])


class ReservedPort:
    """A free loopback port: a socket stays bound to it without listening, so that no other program can bind it
    (socket(7)). A server of ours can listen on it if it sets SO_REUSEPORT, any number of times.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    def release(self) -> None:
        self._socket.close()


def announced_ports(pid: int, log: Path) -> list[int]:
    """Ports on which a process listens and which its log names in a URL. Others may belong to NCCL or
    torch.distributed, whose start a stray request may disturb.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            named = {int(port) for port in _URL.findall(file.read(_READ_BYTES))}
    except OSError:
        return []
    return [port for port in listening_ports(pid) if port in named] if named else []


def listening_ports(pid: int) -> list[int]:
    found = set()
    try:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                connections = process.net_connections("tcp")
                found |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    except psutil.Error:  # it has ended
        return []
    return sorted(found)


def foreign_listener(url: str, pid: int) -> Listener | None:
    """A listener on a URL's port that neither `pid` nor its children started; None where there is none, or it is not
    visible: that of another user or container.
    """
    try:
        tree = {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:  # it has ended
        tree = {pid}
    found = listeners(None, host_and_port(url)[1])
    if any(listener.pid is None or listener.pid in tree for listener in found):
        return None
    return next(iter(found), None)
