"""Messages between the master of a hunt and its workers.

They have the form of Locust's, so that a worker of a load and the master of a hunt understand each other's refusal.
Their kinds are in load/cluster/messages.py.
"""

from __future__ import annotations

import io
import socket
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it ships no types
import zmq
import zmq.asyncio

LOST_AFTER_S = 15.0
"""Master and worker count each other as lost after this long without a message."""
PING_S = 1.0
RESEND_S = 5.0
CLOSE_S = 1.0
"""Time that last messages have when a socket is closed."""
_MOST_BYTES = 1 << 30


def pack(kind: str, data: Mapping[str, Any], sender: str) -> bytes:
    """Make the frame of a message."""
    packed: bytes = msgpack.packb((kind, data, sender))
    return packed


def unpack(frame: bytes) -> tuple[str, dict[str, Any]]:
    """Read the frame of a message. Raises ValueError for anything else."""
    try:
        kind, data, _ = msgpack.unpackb(frame, raw=False, strict_map_key=False)
    except (msgpack.UnpackException, TypeError, ValueError) as e:
        raise ValueError(f"no message: {e}") from e
    return str(kind), data if isinstance(data, dict) else {}


def open_socket(kind: int, host: str, port: int) -> zmq.asyncio.Socket:
    """Open a socket for a host as Locust does."""
    found = zmq.asyncio.Context().socket(kind)
    found.setsockopt(zmq.TCP_KEEPALIVE, 1)
    found.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    found.setsockopt(zmq.LINGER, int(1000 * CLOSE_S))
    if socket.has_dualstack_ipv6() and (host == "*" or _has_ipv6(host, port)):
        found.setsockopt(zmq.IPV6, 1)
    return found


def close_socket(opened: zmq.asyncio.Socket) -> None:
    """Close a socket and its context after its last messages were sent."""
    context = opened.context
    opened.close()
    context.term()


def _has_ipv6(host: str, port: int) -> bool:
    try:
        return any(f[0] == socket.AF_INET6 for f in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP))
    except OSError:
        return False


def pack_run(run: Path) -> bytes:
    """Pack the folder of a run."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        tar.add(run, arcname=".")
    return buffer.getvalue()


def unpack_run(data: bytes, into: Path) -> None:
    """Write the files of a packed run.

    Nothing outside `into` is written. Raises ValueError for anything that `pack_run` does not make.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            if sum(member.size for member in tar) > _MOST_BYTES:
                raise ValueError(f"a run of more than {_MOST_BYTES >> 20} MiB")
            tar.extractall(into, filter="data")
    except (tarfile.TarError, EOFError, OSError) as e:
        raise ValueError(f"the run cannot be unpacked: {e}") from e
