"""Registry of the command line, and a factory for profiles."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import Profile, Registry, load

GOOD = """
name: good
traffic:
  - {name: text, weight: 3, payload: {text: {tokens: 32..64}}}
load:
  - {users: 4, requests: 10}
"""


@pytest.fixture(scope="session")
def registry() -> Registry:
    return full_registry()


Write = Callable[..., Profile]


@pytest.fixture
def write(tmp_path: Path, registry: Registry) -> Write:
    def make(text: str, *overrides: str) -> Profile:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return load(path, registry, overrides)

    return make


@pytest.fixture
def good() -> str:
    return GOOD
