"""Fixtures of the wire tests: the misbehaving server."""

from collections.abc import Iterator

import pytest

from tests.load.wire.misbehaving import Misbehaving


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving() as it:
        yield it
