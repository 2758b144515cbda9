"""Fixtures: a made-up finished run with a death, and its verdict."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.ledger.folder import RunFolder
from tests.report import prometheus_programs
from tests.report.made_up_run import HOSTILE, make_verdict, write_run


@pytest.fixture
def verdict() -> Verdict:
    """Verdict of the made-up run."""
    return make_verdict()


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """Made-up run of 40 s in which the server dies at 30 s."""
    return write_run(tmp_path / "run")


@pytest.fixture
def make_run() -> Callable[..., RunFolder]:
    """`write_run`, for runs of other lengths."""
    return write_run


@pytest.fixture
def hostile() -> str:
    """Text as a hostile server would send it."""
    return HOSTILE


ALONE = ("victoria-metrics",)
"""Programs with a package of their own, needed by one test only."""


@pytest.fixture(scope="session")
def prometheus_program() -> Callable[[str], Path]:
    """Programs of Prometheus, from the machine or from Debian's packages.

    Tests are skipped without them.
    """
    trouble: dict[str, str] = {}

    def program(name: str) -> Path:
        if prometheus_programs.find(name) is None and name not in trouble:
            trouble[name] = prometheus_programs.fetch((name,) if name in ALONE else prometheus_programs.PACKAGES)
        found = prometheus_programs.find(name)
        if found is None:
            pytest.skip(
                f"{name} is not here ({trouble[name]}): install it, or name its folder in {prometheus_programs.ENV}"
            )
        return found

    return program
