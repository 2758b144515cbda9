"""Fixtures of the room: the misbehaving server, a port where nobody listens, and waiting for a condition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.load.wire.misbehaving import Misbehaving, running


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with running() as it:
        yield it
