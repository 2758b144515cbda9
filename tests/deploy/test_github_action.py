import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
STEP = [sys.executable, str(ROOT / "deploy" / "github_action.py")]


def yaml(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / name).read_text("utf-8"))
    return found


def step(home: Path, program: str, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the action's step with its inputs; returns what it did and its outputs."""
    env = {
        "LOADCHAOS": program, "RUNS": str(home / "runs"), "PROFILE": "smoke", "TARGET": "", "LAUNCH": "", "ARGS": "",
        "GITHUB_OUTPUT": str(home / "output"), **inputs,
    }  # fmt: skip
    done = subprocess.run(STEP, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    return done, dict(line.split("=", 1) for line in (home / "output").read_text().splitlines())


def stand_in(home: Path, code: int) -> str:
    program = home / "loadchaos"
    program.write_text(f'#!/bin/sh\nfor a in "$@"; do echo "[$a]"; done\nexit {code}\n')
    program.chmod(0o755)
    return str(program)


def test_action_passes_its_inputs_word_by_word(tmp_path: Path) -> None:
    program = stand_in(tmp_path, 0)
    done, outputs = step(tmp_path, program, LAUNCH="vllm serve 'my model'", ARGS="--set 'name=a b' -u 4 $(id) `id`")
    words = [line[1:-1] for line in done.stdout.splitlines()]
    assert words == [
        "run", "smoke", "--out", str(tmp_path / "runs"), "--no-live", "--ci", "github", "--launch", "vllm serve 'my model'",
        "--set", "name=a b", "-u", "4", "$(id)", "`id`",
    ]  # fmt: skip
    assert outputs == {"exit-code": "0", "verdict": "", "folder": ""}


def test_action_tells_a_quote_that_is_not_closed(tmp_path: Path) -> None:
    done, outputs = step(tmp_path, stand_in(tmp_path, 0), ARGS="--set 'x")
    assert (done.returncode, outputs["exit-code"]) == (2, "2")
    assert "::error title=loadchaos::args: No closing quotation" in done.stdout


def runs_made(home: Path, **verdicts: str) -> str:
    """Shell commands that make run folders with their verdicts."""
    lines = ["set -e"]
    for name, said in verdicts.items():
        folder = home / "runs" / name.replace("_", "-")
        lines.append(
            f'mkdir -p {folder}; touch {folder}/events.jsonl; echo \'{{"verdict": "{said}"}}\' > {folder}/verdict.json'
        )
    return "\n".join(lines)


@pytest.mark.parametrize(("verdict", "code"), [("fail", 1), ("unknown", 3)])
def test_action_has_the_exit_code_and_verdict_of_its_newest_run(tmp_path: Path, verdict: str, code: int) -> None:
    subprocess.run(["sh", "-c", runs_made(tmp_path, zoo_20261122T000000Z="pass")], check=True)
    made = runs_made(tmp_path, smoke_20261122T010000Z="pass", quick_20261122T020000Z=verdict)
    program = Path(stand_in(tmp_path, code))
    program.write_text(f"#!/bin/sh\n{made}\nexit {code}\n")
    done, outputs = step(tmp_path, str(program))
    folder = str(tmp_path / "runs" / "quick-20261122T020000Z")
    assert done.returncode == code
    assert outputs == {"exit-code": str(code), "verdict": verdict, "folder": folder}


def test_action_does_not_report_the_run_of_another_step(tmp_path: Path) -> None:
    subprocess.run(["sh", "-c", runs_made(tmp_path, smoke_20261122T000000Z="pass")], check=True)
    _, outputs = step(tmp_path, stand_in(tmp_path, 2))
    assert outputs == {"exit-code": "2", "verdict": "", "folder": ""}


def test_action_file_uses_each_input_and_no_input_in_a_script() -> None:
    text = (ROOT / "action.yml").read_text("utf-8")
    action = yaml("action.yml")
    assert [name for name in action["inputs"] if f"inputs.{name}" not in text] == []
    scripts = [s["run"] for s in action["runs"]["steps"] if "run" in s]
    assert not any("${{" in script for script in scripts), "the text of an input would be run by the shell"
    given = next(s for s in action["runs"]["steps"] if s.get("id") == "run")["env"]
    assert {"LOADCHAOS", "RUNS", "PROFILE", "TARGET", "LAUNCH", "ARGS"} <= set(given)


def test_example_workflow_uses_inputs_of_the_action() -> None:
    [job] = yaml("examples/github-workflow.yml")["jobs"].values()
    [ours] = [s for s in job["steps"] if "loadchaos@" in s.get("uses", "")]
    assert set(ours["with"]) <= set(yaml("action.yml")["inputs"])


@pytest.mark.slow
def test_action_runs_smoke(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("loadchaos"))
    done, outputs = step(tmp_path, program, ARGS="--embedded --duration 5s")
    assert outputs["folder"].startswith(str(tmp_path / "runs" / "smoke-"))
    assert outputs["exit-code"] == str(done.returncode)
    assert outputs["verdict"] == {0: "pass", 1: "fail", 3: "unknown"}[done.returncode], done.stdout + done.stderr
