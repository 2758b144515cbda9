"""Fixtures of the wire tests: the misbehaving server."""

from collections.abc import Iterator

import pytest

from tests.load.wire.misbehaving import Misbehaving, running


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with running() as it:
        yield it
