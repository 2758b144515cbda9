"""Whole hunts on the embedded server, and mistakes that are told before anything is started."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from loadchaos.cli.hunt import hunt, newest_hunt
from loadchaos.cli.resume import recorded, restored
from loadchaos.core import own_folder
from loadchaos.core.redact import REDACTED
from tests.campaigns.traces import embedded_command
from tests.invoking import output_of
from tests.waiting import until
from tests.warm_command import run_command


def launch(*defects: str, **flags: int) -> str:
    return shlex.join(embedded_command(*defects, **flags))


def folder_of(home: Path) -> Path:
    return next((home / "runs").glob("hunt-*"))


def test_mistakes_are_told_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loadchaos.cli.hunt.create_privately", lambda: None)  # it would change the test's own mask
    (tmp_path / "genes.yaml").write_text("traffic: {image: false}\n")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = s.getsockname()[1]
        mistakes = [
            ([], "a hunt needs a server that it can start"),
            (
                ["--launch", "serve --port 9", "--genes", "genes.yaml"],
                "genes.yaml:1:11: traffic.image: images was expected",
            ),
            (
                ["--launch", "serve", "--genes", "empty.yaml"],
                "the file is empty: genes such as `traffic: {images: false}`",
            ),
            (["--launch", f"serve --port {taken}"], "another server already listens"),
            (["--launch", "serve", "--parallel", "2"], "--parallel: the launch command needs its --port"),
            (["--launch", "serve 'x"], "is a quote not closed?"),
            (["--launch", "serve", "--budget", "2 hours"], "--budget: "),
            (["--resume"], "--resume: runs has no hunt"),
        ]
        for args, message in mistakes:
            assert message in output_of("hunt", *args, code=2)
    assert not (tmp_path / "runs").exists()


def stored_hunt(folder: Path, *workloads: str, **more: object) -> None:
    folder.mkdir(parents=True)
    own_folder.seal(folder)
    settings = {
        "schema": 1, "launch": "serve --port 9", "budget_s": 60.0, "genes": {"load": {"users": [2]}}, "seed": 3,
        "requests": 64, "no_feedback": False, "model": "m", "headers": [], "parallel": 2, **more,
    }  # fmt: skip
    (folder / "hunt.json").write_text(json.dumps(settings))
    (folder / "workloads.jsonl").write_text("".join(f"{row}\n" for row in workloads))


@pytest.mark.parametrize(
    ("stored", "args", "message"),
    [
        ({}, ["--seed", "4"], "continues a hunt with its own options: leave out --seed, or start a new hunt"),
        ({}, ["--requests", "128"], "leave out --requests, or start a new hunt"),
        ({}, ["--genes", "genes.yaml"], "--genes differs from those of the hunt"),
        ({}, ["--launch", "other"], "leave out --launch, or start a new hunt"),
        ({"headers": [f"X-Key={REDACTED}"]}, [], "--header had a secret, which is not recorded; give it again"),
        ({"api_key_env": "NOT_SET_HERE"}, [], "NOT_SET_HERE"),
    ],
)
def test_resumed_hunt_has_the_options_of_the_stored_one(
    stored: dict[str, object], args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loadchaos.cli.hunt.create_privately", lambda: None)
    (tmp_path / "genes.yaml").write_text("load: {users: [4]}\n")
    stored_hunt(tmp_path / "runs" / "hunt-1", **stored)
    assert message in output_of("hunt", "--resume", *args, code=2)


def test_resumed_hunt_takes_options_that_were_not_typed(tmp_path: Path) -> None:
    typed = ["--launch", "serve", "--model", "m", "--parallel", "2", "--header", "X-Team=text", "--workload-time", "9s"]
    first = hunt.make_context("hunt", typed)
    stored = {name: recorded(name, value) for name, value in first.params.items()}
    assert stored["headers"] == (f"X-Team={REDACTED}",)
    again = hunt.make_context("hunt", ["--resume", "--parallel", "4", "--header", "X-Team=other"])
    own_folder.seal(tmp_path)
    found = restored(again, stored, ("seed",), "hunt", tmp_path)
    assert (found["model"], found["workload_time"], found["parallel"]) == ("m", 9.0, 4)
    assert found["headers"] == ("X-Team=other",)


def test_resume_prefers_a_hunt_that_had_workloads(tmp_path: Path) -> None:
    stored_hunt(tmp_path / "hunt-1", '{"row":"header","schema":1}', '{"row":"workload","n":1}')
    stored_hunt(tmp_path / "hunt-2", '{"row":"header","schema":1}')
    assert newest_hunt(tmp_path).name == "hunt-1"


@pytest.mark.slow
def test_short_hunt_finds_a_death_and_keeps_its_run(tmp_path: Path) -> None:
    (tmp_path / "genes.yaml").write_text(
        "traffic: {tokens: [1500], output: [2], images: false, turns: false, near_limit: false, abort: false,\n"
        "  client: false, script: false, schema: false, tools: false, n: false}\n"
        "load: {users: [2], requests: [4], form: [steady], questions: false}\nattacks: {admin: false}\n"
    )
    line = launch("near_max_oob", max_model_len=2048)
    done = run_command(
        "hunt", "--launch", line, "--budget", "8s", "--findings", "1", "--genes", "genes.yaml", cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    folder = folder_of(tmp_path)
    found = json.loads((folder / "findings" / "01-index_oob_indexkernel" / "finding.json").read_text())
    assert found["failure"]["severity"] == "engine_death"
    assert (folder / found["folder"] / "incident.md").exists()
    assert "index_oob_indexkernel" in (folder / "report.html").read_text()
    assert re.search(r"\d genes fit it", done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hunt_without_hints_finds_replays_and_minimises(tmp_path: Path) -> None:
    line = launch("near_max_oob", max_model_len=4096)
    done = run_command(
        "hunt", "--launch", line, "--budget", "6m", "--findings", "1", "--seed", "3", cwd=tmp_path, limit_s=900
    )
    assert done.returncode == 1, done.stdout + done.stderr
    folder = folder_of(tmp_path)
    found = json.loads(next((folder / "findings").glob("*/finding.json")).read_text())
    assert found["failure"]["id"] == "index_oob_indexkernel"
    assert found["replay"]["reproduced"] >= 2
    assert found["minimised"].startswith("MINIMISED")
    assert (folder / found["repro"] / "repro.py").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hunt_on_a_healthy_server_finds_nothing(tmp_path: Path) -> None:
    line = launch(num_gpu_blocks=1024)  # long prompts, 64 at once, wait in it for longer than a client waits
    done = run_command("hunt", "--launch", line, "--budget", "120s", "--parallel", "2", cwd=tmp_path, limit_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOTHING FOUND" in done.stderr
    assert not (folder_of(tmp_path) / "findings").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_hunt_leaves_no_server_and_continues(tmp_path: Path) -> None:
    line = launch()
    argv = [sys.executable, "-m", "loadchaos", "hunt", "--launch", line, "--budget", "90s"]
    with (tmp_path / "out").open("wb") as out:
        hunt = subprocess.Popen(argv, cwd=tmp_path, stdout=out, stderr=out)
        until(lambda: b"workload 2 " in (tmp_path / "out").read_bytes(), "the second workload", 120)
        hunt.send_signal(signal.SIGKILL)
        hunt.wait()
    journal = folder_of(tmp_path) / "workloads.jsonl"
    rows = len(journal.read_bytes().splitlines()) - 1
    assert rows >= 2
    port = line.partition("--port ")[2].split()[0]
    until(lambda: not any(port in (p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])), "no server")
    done = run_command("hunt", "--resume", "--budget", "60s", cwd=tmp_path, limit_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"continuing after {rows} workloads" in done.stderr
    numbers = [json.loads(r)["n"] for r in journal.read_bytes().splitlines()[1:] if b'"row":"header"' not in r]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > rows
