"""Kill a process of a command at a random moment: none of its processes is left ten seconds after the command. The run of
a soak that was killed goes on to its own end, and leaves none either.
"""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from loadchaos.run.ports import free_port
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.waiting import until

KILLS = int(os.environ.get("LOADCHAOS_TEST_KILLS", "2"))
"""Kills for each command; the full proof takes 30."""
REQUEST = {"messages": [{"role": "user", "content": "time"}], "max_tokens": 300, "ignore_eos": True, "stream": True}
LATEST_S, LIMIT_S, LEFT_S, RUN_LEFT_S = 14.0, 120.0, 10.0, 40.0
PROFILE = """\
name: small
target: {on_death: restart, embedded: {dialect: vllm, era: "0.18"}}
traffic: [{name: text, payload: {text: {tokens: 16..64}}, output: {max: 32}}]
load: [{users: 4, for: 12s}]
schedule: {cron: "0 2 * * *"}
"""
RUN = ["run", "x.yaml", "--embedded", "--no-live", "--exporter-port", "0"]
COMMANDS = {
    "run": RUN,
    "run with 2 workers": [*RUN, "--processes", "2"],
    "run with 4 workers": [*RUN, "--processes", "4"],
    "run with a silent log command": [*RUN, "--server-log", "cmd:sleep 1000"],
    "suite": ["suite", "--only", "smoke", "-t", "12s", "--launch"],
    "capacity": ["capacity", "x.yaml", "--slo", "e2e=2s", "--budget", "40s", "--exporter-port", "0", "--launch"],
    "soak": ["soak", "x.yaml", "--once", "--embedded", "--no-live", "--exporter-port", "0"],
    "hunt": ["hunt", "--budget", "25s", "--launch"],
    "replay": ["replay", "requests.jsonl", "--any-death", "--times", "2", "--launch"],
    "minimise": ["minimise", "requests.jsonl", "--any-death", "--budget", "25s", "--launch"],
    "run with a remote worker": [
        *RUN,
        "--master",
        "--expect-workers",
        "1",
        "--wait-workers",
        "30s",
        "--master-bind-port",
    ],
    "record": ["record", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--out", "recording"],
}
"""Words of each command; a last `--launch` gets the command of a server, a last `--master-bind-port` a port and a worker."""
PARTS = {"follower": "loadchaos.run.follower", "supervisor": "loadchaos.server.process.supervisor"}
"""Parts of the command lines of two victims."""
VICTIMS = [(n, v) for n in COMMANDS for v in ("the command", "any")] + [("run", victim) for victim in PARTS]


def marked(mark: str) -> list[psutil.Process]:
    """Living processes with this mark in their environment, which children inherit."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(KILLS))
@pytest.mark.parametrize(("name", "victim"), VICTIMS)
def test_no_process_is_left_after_a_kill(name: str, victim: str, kill: int, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(PROFILE)
    chance, mark = random.Random(f"{name} {victim} {kill}"), uuid.uuid4().hex
    env = {k: v for k, v in os.environ.items() if k != "CI"} | {"MARK": mark}
    (tmp_path / "requests.jsonl").write_text(
        "".join(
            json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": REQUEST}) + "\n"
            for n in range(40)
        )
    )
    words, port = list(COMMANDS[name]), free_port()
    if words[-1] == "--launch":
        words.append(shlex.join(command(SimulatorSpec("vllm", "0.18", (), {"quiet": True}), port)))
    started = [words]
    if words[-1] == "--master-bind-port":
        words.append(str(port))
        started.append(["worker", "--master-host", "127.0.0.1", "--master-port", str(port), "--wait", "30s"])
    with (tmp_path / "out").open("wb") as out:
        process, *others = [
            subprocess.Popen([sys.executable, "-m", "loadchaos", *each], cwd=tmp_path, env=env, stdout=out, stderr=out)
            for each in started
        ]
    try:
        time.sleep(chance.uniform(0.5, LATEST_S))
        running = marked(mark)
        if part := PARTS.get(victim):
            running = until(
                lambda: [p for p in marked(mark) if part in " ".join(p.cmdline())], f"the {victim}", LIMIT_S
            )
        assert process.poll() in (None, 0), (tmp_path / "out").read_text()
        if victim == "the command":
            process.kill()
        elif running:
            chance.choice(running).send_signal(signal.SIGKILL)
        if name == "record":
            process.send_signal(signal.SIGINT)
        for each in (process, *others):
            each.wait(LIMIT_S)
        deadline = time.monotonic() + (RUN_LEFT_S if name == "soak" else LEFT_S)
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [" ".join(p.cmdline()) for p in marked(mark)] == [], (tmp_path / "out").read_text()
    finally:
        for left in marked(mark):
            left.kill()
        for each in (process, *others):
            each.wait()
