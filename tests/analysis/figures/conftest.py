"""Fixtures: a made-up finished run."""

from tests.report.conftest import make_run, run_folder

__all__ = ["make_run", "run_folder"]
