"""The workflows: what is published was built once, checked, and tested on each Python that we promise.

github-workflows.json is the schema of SchemaStore (Apache-2.0) without its descriptions.
"""

import json
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from loadchaos.load.wire.native import PURE

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(__file__).parent / "github-workflows.json").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def workflow(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(path.read_text())
    return found


JOBS = workflow(ROOT / ".github/workflows/release.yml")["jobs"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_is_valid_and_ends(path: Path) -> None:
    found = workflow(path)
    jsonschema.validate(found, SCHEMA)
    assert [name for name, job in found["jobs"].items() if "timeout-minutes" not in job] == []
    assert found["permissions"] == {"contents": "read"}, "a job that needs more says so"


def test_workflow_schema_finds_a_mistake() -> None:
    found = workflow(ROOT / ".github/workflows/container.yml")
    found["jobs"]["build"]["stepz"] = found["jobs"]["build"].pop("steps")
    with pytest.raises(jsonschema.ValidationError, match="stepz"):
        jsonschema.validate(found, SCHEMA)


def test_image_is_published_after_a_run_in_it() -> None:
    jobs = workflow(ROOT / ".github/workflows/container.yml")["jobs"]
    assert any("run smoke --embedded" in step.get("run", "") for step in jobs["build"]["steps"])
    assert jobs["publish"]["needs"] == "build"
    (push,) = [step for step in jobs["publish"]["steps"] if step.get("id") == "push"]
    assert (push["with"]["file"], push["with"]["sbom"]) == ("deploy/Containerfile", True)


def test_release_publishes_only_what_was_checked_and_tested() -> None:
    for name in ("build", "native"):
        assert "twine check --strict dist/*" in [step.get("run", "") for step in JOBS[name]["steps"]]
    assert (JOBS["publish"]["needs"], JOBS["test"]["needs"]) == ("test", ["build", "native"])
    assert JOBS["publish"]["permissions"] == {"id-token": "write"}, "trusted publishing has no stored token"
    assert not any("actions/checkout" in step.get("uses", "") for step in JOBS["test"]["steps"]), "only the wheel"


def test_release_has_native_wheels_of_both_processors_and_a_pure_one() -> None:
    assert JOBS["native"]["strategy"]["matrix"]["machine"] == ["ubuntu-latest", "ubuntu-24.04-arm"]
    (built,) = [step for step in JOBS["native"]["steps"] if "cibuildwheel --" in step.get("run", "")]
    assert "run smoke" in built["env"]["CIBW_TEST_COMMAND"], "that of another processor is tried where it is built"
    (pure,) = [step["run"] for step in JOBS["build"]["steps"] if "python -m build" in step.get("run", "")]
    assert pure.startswith(f"{PURE}=1 ")
    kept = [
        s["with"]["name"]
        for name in ("build", "native")
        for s in JOBS[name]["steps"]
        if "upload-artifact" in s.get("uses", "")
    ]
    for job in ("test", "publish"):
        (step,) = [s for s in JOBS[job]["steps"] if "download-artifact" in s.get("uses", "")]
        assert all(fnmatch(name, step["with"]["pattern"]) for name in kept)


def test_release_tests_the_lowest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"].removeprefix(">=") == JOBS["test"]["strategy"]["matrix"]["python"][0]
