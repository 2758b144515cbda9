"""Shelves as the command line hands them in, and a profile written into a file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loadchaos.behaviours import BEHAVIOURS
from loadchaos.dialects import DIALECTS
from loadchaos.payloads import PAYLOADS
from loadchaos.plan.profile import Profile, Shelves, load
from loadchaos.sim.defects import DEFECTS

GOOD = """
name: good
traffic:
  - {name: text, weight: 3, payload: {text: {tokens: 32..64}}}
load:
  - {users: 4, requests: 10}
"""


@pytest.fixture(scope="session")
def shelves() -> Shelves:
    defects: dict[str, set[str]] = {}
    for name, defect in DEFECTS.items():
        defects.setdefault(defect.dialect, set()).add(name)
    return Shelves(
        payloads={n: p.Options for n, p in PAYLOADS.items()},
        behaviours={n: b.Options for n, b in BEHAVIOURS.items()},
        attacks={n: frozenset(d.admin) for n, d in DIALECTS.items()},
        defects={n: frozenset(names) for n, names in defects.items()},
        dialects=frozenset(DIALECTS),
    )


@pytest.fixture
def write(tmp_path: Path, shelves: Shelves) -> Callable[..., Profile]:
    def make(text: str, *overrides: str) -> Profile:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return load(path, shelves, overrides)

    return make


@pytest.fixture
def good() -> str:
    return GOOD
