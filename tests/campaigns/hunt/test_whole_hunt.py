"""Whole hunts on the embedded server, and mistakes that are told before anything is started."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from loadchaos.campaigns.hunt.journal import Journal
from loadchaos.cli.hunt import hunt, newest_hunt
from loadchaos.cli.hunt_settings import stored_form, with_stored
from loadchaos.cli.main import main
from loadchaos.core.redact import REDACTED
from loadchaos.run.ports import free_port
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.warm_command import run_command


def launch(*defects: str, **flags: object) -> str:
    return shlex.join(command(SimulatorSpec("vllm", "0.18", defects, flags), free_port()))


def hunting(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command("hunt", *args, cwd=cwd, env=dict(os.environ))


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
            (["--launch", "serve", "--master", "--master-bind-port", str(taken)], f"--master-bind-port {taken}: "),
            (["--launch", "serve 'x"], "is a quote not closed?"),
            (["--launch", "serve", "--budget", "2 hours"], "--budget: "),
            (["--resume"], "--resume: runs has no hunt"),
        ]
        for args, message in mistakes:
            done = CliRunner().invoke(main, ["hunt", *args])
            assert done.exit_code == 2, args
            assert message in done.output
    assert not (tmp_path / "runs").exists()


def stored_hunt(folder: Path, *workloads: str, **more: object) -> None:
    folder.mkdir(parents=True)
    settings = {
        "schema": 1, "launch": "serve --port 9", "budget_s": 60.0, "genes": {"load": {"users": [2]}}, "seed": 3,
        "requests": 64, "no_feedback": False, "model": "m", "headers": [], "parallel": 2, **more,
    }  # fmt: skip
    (folder / "hunt.json").write_text(json.dumps(settings))
    (folder / "workloads.jsonl").write_text("".join(f"{row}\n" for row in workloads))


@pytest.mark.parametrize(
    ("stored", "args", "message"),
    [
        ({}, ["--seed", "4"], "--seed differs from that of the hunt (3); start a new hunt"),
        ({}, ["--requests", "128"], "--requests differs from that of the hunt (64)"),
        ({}, ["--genes", "genes.yaml"], "--genes differs from those of the hunt"),
        ({}, ["--launch", "other"], "--launch differs from that of the hunt (serve --port 9)"),
        ({"headers": [f"X-Key={REDACTED}"]}, [], "the value of the header X-Key is not stored: give it again"),
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
    done = CliRunner().invoke(main, ["hunt", "--resume", *args])
    assert done.exit_code == 2
    assert message in done.output


def test_resumed_hunt_takes_options_that_were_not_typed() -> None:
    typed = ["--launch", "serve", "--model", "m", "--parallel", "2", "--header", "X-Team=text", "--workload-time", "9s"]
    first = hunt.make_context("hunt", typed)
    stored = stored_form(first.params)
    assert stored["headers"] == [f"X-Team={REDACTED}"]
    again = hunt.make_context("hunt", ["--resume", "--parallel", "4", "--header", "X-Team=other"])
    found = with_stored(again, again.params, stored)
    assert (found["model"], found["workload_time"], found["parallel"]) == ("m", 9.0, 4)
    assert found["headers"] == ("X-Team=other",)


def test_resume_prefers_a_hunt_that_had_workloads(tmp_path: Path) -> None:
    stored_hunt(tmp_path / "hunt-1", '{"row":"header","schema":1}', '{"row":"workload","n":1}')
    stored_hunt(tmp_path / "hunt-2", '{"row":"header","schema":1}')
    assert newest_hunt(tmp_path).name == "hunt-1"


def test_short_hunt_finds_a_death_and_keeps_its_run(tmp_path: Path) -> None:
    (tmp_path / "genes.yaml").write_text(
        "traffic: {tokens: [1500], output: [2], images: false, turns: false, near_limit: false, abort: false,\n"
        "  client: false, script: false, schema: false, tools: false, n: false}\n"
        "load: {users: [2], requests: [4], form: [steady], questions: false}\nattacks: {admin: false}\n"
    )
    line = launch("near_max_oob", max_model_len=2048)
    done = hunting("--launch", line, "--budget", "8s", "--findings", "1", "--genes", "genes.yaml", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    folder = folder_of(tmp_path)
    found = json.loads((folder / "findings" / "01-index_oob_indexkernel" / "finding.json").read_text())
    assert found["failure"]["severity"] == "engine_death"
    assert (folder / found["folder"] / "incident.md").exists()
    assert "index_oob_indexkernel" in (folder / "report.html").read_text()
    assert re.search(r"\d genes fit it", done.stderr)


ONE_KIND = """
traffic: {tokens: [1500], output: [2], images: false, turns: false, near_limit: false, abort: false, client: false,
  script: false, schema: false, tools: false, n: false}
load: {users: [2], requests: [4], form: [steady], questions: false}
attacks: {admin: false}
"""


class Machine:
    """A command of its own on loopback, with what it printed."""

    def __init__(self, home: Path, *args: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self._out = home, home / f"{len(list(home.iterdir()))}.out"
        with self._out.open("wb") as out:
            argv = [sys.executable, "-m", "loadchaos", *args]
            self.process = subprocess.Popen(argv, cwd=home, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    @property
    def output(self) -> str:
        return self._out.read_text()

    def says(self, text: str, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while text not in self.output:
            assert time.monotonic() < deadline, f"waited in vain for {text!r}: {self.output}"
            time.sleep(0.1)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def start(name: str, *args: str) -> Machine:
        made.append(Machine(tmp_path / name, *args))
        return made[-1]

    yield start
    for it in made:
        if it.process.poll() is None:
            it.process.kill()
            it.process.wait()


def joins(port: int, line: str) -> tuple[str, ...]:
    return ("worker", "--master-host", "127.0.0.1", "--master-port", str(port), "--launch", line, "--wait", "60s")


def listens(line: str) -> bool:
    """Whether the server of a launch command has its port."""
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", int(line.partition("--port ")[2].split()[0]))) == 0


def test_worker_finds_what_only_its_own_server_has(
    tmp_path: Path, machines: Callable[..., Machine], unused_port: int
) -> None:
    (tmp_path / "genes.yaml").write_text(ONE_KIND)
    faulty, options = launch("near_max_oob", max_model_len=2048), ("--master", "--master-bind-port", str(unused_port))
    worker = machines("w", *joins(unused_port, faulty))
    done = hunting(
        "--launch", launch(max_model_len=2048), "--budget", "20s", "--findings", "1", "--genes", "genes.yaml", *options,
        cwd=tmp_path,
    )  # fmt: skip
    assert worker.process.wait(60) == 0, worker.output
    assert not listens(faulty)
    folder = folder_of(tmp_path)
    found = json.loads((folder / "findings" / "01-index_oob_indexkernel" / "finding.json").read_text())
    assert found["server"] == f"{socket.gethostname()}-1"
    assert (folder / found["folder"] / "run" / "verdict.json").exists()
    assert (folder / found["folder"] / "incident.md").exists()
    assert done.returncode == 1, done.stderr
    assert f"(workload {found['workload']}, first on {found['server']} after" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_and_master_are_killed_and_the_hunt_continues(
    machines: Callable[..., Machine], unused_port: int
) -> None:
    lines = [launch("near_max_oob", max_model_len=4096) for _ in range(4)]
    options = ("--master", "--master-bind-port", str(unused_port), "--workload-time", "20s", "--requests", "32")
    master = machines("m", "hunt", "--launch", lines[0], "--budget", "10m", "--seed", "3", *options)
    first, second = (machines(f"w{n}", *joins(unused_port, lines[n])) for n in (1, 2))
    host = socket.gethostname()
    for n in (1, 2):
        master.says(f"worker {host}-{n} hunts, too")
    for name in (f"on {host}-1 (", f"on {host}-2 ("):
        master.says(name, 120)
    first.process.send_signal(signal.SIGKILL)
    master.says("sent nothing for", 40)
    folder = folder_of(master.home)
    rows = len(Journal(folder).rows)
    while len(Journal(folder).rows) < rows + 3:
        assert master.process.poll() is None, master.output
        time.sleep(0.5)
    master.process.send_signal(signal.SIGKILL)
    assert second.process.wait(90) == 3, second.output
    assert "the master sent nothing for" in second.output
    deadline = time.monotonic() + 60
    while any(map(listens, lines)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not any(map(listens, lines)), "the servers of killed processes end"
    rows = len(Journal(folder).rows)
    again = machines("m", "hunt", "--resume", "--findings", "9")
    again.says(f"continuing after {rows} workloads")
    third = machines("w3", *joins(unused_port, lines[3]))
    again.says(f"on {host}-1 (", 120)
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(120) == 130, again.output
    assert third.process.wait(60) == 0, third.output
    numbers = [r["n"] for r in Journal(folder).rows]
    assert len(numbers) == len(set(numbers)) > rows
    assert len(set(range(1, max(numbers))) - set(numbers)) <= 5, "each kill costs the workloads in flight"
    assert not any(map(listens, lines))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_worker_ends_its_server_while_it_starts(
    number: int, machines: Callable[..., Machine], unused_port: int
) -> None:
    line = launch()
    options = ("--master", "--master-bind-port", str(unused_port))
    master = machines("m", "hunt", "--launch", launch(), "--budget", "10m", *options)
    worker = machines("w", *joins(unused_port, line))
    worker.says("the server is started")
    worker.process.send_signal(number)
    assert worker.process.wait(60) == (143 if number == signal.SIGTERM else -number), worker.output
    if number == signal.SIGTERM:
        master.says("left: signal 15")
    time.sleep(5)  # a server that was being started would listen by now
    assert not listens(line)


def test_worker_without_launch_is_told_that_the_master_hunts(
    tmp_path: Path, machines: Callable[..., Machine], unused_port: int
) -> None:
    options = ("--master", "--master-bind-port", str(unused_port))
    machines("m", "hunt", "--launch", launch(), "--budget", "10m", *options)
    args = ("--master-host", "127.0.0.1", "--master-port", str(unused_port))
    done = run_command("worker", *args, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 2
    assert "this is the master of a hunt: start the worker with --launch" in done.stderr
    done = run_command("worker", *args, "--model", "m", cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 2
    assert "need --launch" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hunt_without_hints_finds_replays_and_minimises(tmp_path: Path) -> None:
    line = launch("near_max_oob", max_model_len=4096)
    done = hunting_for(tmp_path, "--launch", line, "--budget", "6m", "--findings", "1", "--seed", "3")
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
    done = hunting_for(tmp_path, "--launch", line, "--budget", "120s", "--parallel", "2")
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
        deadline = time.monotonic() + 120
        while b"workload 2 " not in (tmp_path / "out").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.2)
        hunt.send_signal(signal.SIGKILL)
        hunt.wait()
    journal = folder_of(tmp_path) / "workloads.jsonl"
    rows = len(journal.read_bytes().splitlines()) - 1
    assert rows >= 2
    port = line.partition("--port ")[2].split()[0]
    deadline = time.monotonic() + 60
    while any(port in p.cmdline() for p in psutil.process_iter() if _readable(p)) and time.monotonic() < deadline:
        time.sleep(0.5)
    done = hunting_for(tmp_path, "--resume", "--budget", "60s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"continuing after {rows} workloads" in done.stderr
    numbers = [json.loads(r)["n"] for r in journal.read_bytes().splitlines()[1:] if b'"row":"header"' not in r]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > rows


def _readable(process: psutil.Process) -> bool:
    try:
        process.cmdline()
    except psutil.Error:
        return False
    return True


def hunting_for(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A hunt in a process of its own, as it takes minutes."""
    argv = [sys.executable, "-m", "loadchaos", "hunt", *args]
    return subprocess.run(argv, cwd=home, capture_output=True, text=True, timeout=900, check=False)
