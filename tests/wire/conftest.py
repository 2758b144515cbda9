"""Fixtures of the room: the misbehaving server, a port where nobody listens, and waiting for a condition."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.wire.misbehaving import Misbehaving, running


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with running() as it:
        yield it


@pytest.fixture
def unused_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition; fail when it does not come true."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.005)

    return wait
