"""The release workflow: what is published was built once, checked, and tested on each Python that we promise."""

import tomllib
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
JOBS = YAML(typ="safe").load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]


def test_release_publishes_only_what_was_checked_and_tested() -> None:
    commands = [step.get("run", "") for step in JOBS["build"]["steps"]]
    assert "twine check --strict dist/*" in commands
    assert (JOBS["publish"]["needs"], JOBS["test"]["needs"]) == ("test", "build")
    assert JOBS["publish"]["permissions"] == {"id-token": "write"}, "trusted publishing has no stored token"
    assert not any("actions/checkout" in step.get("uses", "") for step in JOBS["test"]["steps"]), "only the wheel"


def test_release_tests_the_lowest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"].removeprefix(">=") == JOBS["test"]["strategy"]["matrix"]["python"][0]
