"""Whole runs with process attacks.

Their effects are expected, every other failure is the server's.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.warm_command import run_command

KILL = """\
name: killed
target: {on_death: restart, embedded: {dialect: vllm, era: "0.18"}}
traffic: [{name: text, payload: {text: {tokens: 16..64}}, output: {max: 64}}]
load: [{users: 4, for: 3s}]
attacks: [{process: sigkill, role: engine_core, at: 1s}]
expect: ["engine_deaths == 0", "failures == 0", "recovers_within <= 20s"]
"""
# A prompt near the limit kills this server while the attack stops and continues its engine core.
BUG = """\
name: bug
target:
  on_death: stop
  embedded: {dialect: vllm, era: "0.18", defects: [near_max_oob], flags: {max_model_len: 4096, speed: 4}}
traffic: [{name: ladder, payload: {near_limit: {band: -1100..-1, step: 50}}}]
load: [{users: 8, requests: 60}]
attacks: [{process: sigstop, role: engine_core, every: 500ms, for: 100ms}]
"""


def run(profile: str, tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    path = tmp_path / "x.yaml"
    path.write_text(profile)
    done = run_command("run", str(path), "--no-live", "--exporter-port", "0", cwd=tmp_path)
    return done, json.loads(next(tmp_path.glob("runs/*/verdict.json")).read_text())


@pytest.mark.slow
def test_run_passes_when_a_killed_engine_core_recovers(tmp_path: Path) -> None:
    done, verdict = run(KILL, tmp_path)
    [failure] = verdict["failures"]
    assert (failure["id"], failure["attribution"]) == ("engine_core_proc_died", "expected")
    assert verdict["attacks"]["sigkill_engine_core"]["ok"] == 1
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_run_fails_on_a_server_bug_during_sigstop(tmp_path: Path) -> None:
    done, verdict = run(BUG, tmp_path)
    death = verdict["failures"][0]
    assert (death["id"], death["attribution"]) == ("index_oob_indexkernel", "server")
    assert verdict["attacks"]["sigstop_engine_core"]["ok"] >= 1
    assert done.returncode == 1


def test_run_with_a_signal_to_a_missing_role_ends_before_the_load(tmp_path: Path) -> None:
    done, verdict = run(KILL.replace("role: engine_core", "role: worker"), tmp_path)
    assert done.returncode == 4
    assert "sigkill_worker cannot be done" in done.stderr
    assert verdict["outcomes"] == {}
