"""Whole searches against a real embedded server: an answer, SIGKILL and --resume, a death."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadchaos.simulator.options import SimulatorSpec
from tests.embedded_server import EmbeddedServer
from tests.waiting import until
from tests.warm_command import outside_ci

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROFILE = """\
name: small
traffic:
  - {name: text, payload: {text: {tokens: 16..32}}, output: {exact: 32}}
load:
  - {rate: 4/s, law: poisson, for: 5s}
slo: {ttft: 2s}
"""


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """Two requests at once: about 13 a second."""
    flags = {"quiet": True, "max_num_seqs": 2, "num_speculative_tokens": 0}
    with EmbeddedServer.of(SimulatorSpec("vllm", "0.32", (), flags)) as found:
        yield found


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    (tmp_path / "small.yaml").write_text(PROFILE)
    argv = [sys.executable, "-m", "loadchaos", "capacity", *arguments]
    return subprocess.Popen(argv, cwd=tmp_path, env=outside_ci(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def stored(tmp_path: Path) -> dict[str, Any]:
    file = next(tmp_path.glob("runs/capacity-*/capacity.json"), None)
    return json.loads(file.read_bytes()) if file is not None else {"steps": []}


def test_search_that_is_killed_continues_to_an_answer(tmp_path: Path, server: EmbeddedServer) -> None:
    options = ["--goal", "90%", "--tolerance", "30%", "--budget", "6m", "--target", server.url]
    process = start(tmp_path, "small.yaml", *options)
    until(lambda: stored(tmp_path)["steps"], "the first step", 120)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = stored(tmp_path)
    assert (before["ended"], before["verdict"]) == (False, None)
    folder = next(tmp_path.glob("runs/capacity-*"))
    time.sleep(6)  # what the killed run started notices that it is alone
    again = start(tmp_path, "--resume", str(folder))
    error = again.communicate(timeout=700)[1].decode()
    assert again.returncode == 0, error
    found = stored(tmp_path)
    assert found["steps"][: len(before["steps"])] == before["steps"]
    assert found["steps"][0]["load"] == 4
    assert found["answer"]["known"]
    assert 3 < found["answer"]["low"] < 14
    assert (folder / found["steps"][-1]["run"] / "report.html").is_file()


def test_search_ends_with_the_incident_of_a_server_that_dies(tmp_path: Path, server: EmbeddedServer) -> None:
    process = start(tmp_path, "small.yaml", "--target", server.url, "--budget", "6m")
    until(lambda: next(tmp_path.glob("runs/capacity-*/steps/01/*/requests-0.jsonl"), None), "the first load", 120)
    time.sleep(3)
    server.process.kill()
    error = process.communicate(timeout=300)[1].decode()
    found = stored(tmp_path)
    assert process.returncode == 1, error
    assert (found["verdict"], found["answer"]["known"]) == ("fail", False)
    assert found["failures"], error
    assert found["ended_by"].startswith(found["failures"][0]["id"])
    incident = found["failures"][0]["incident"]
    folder = next(tmp_path.glob("runs/capacity-*"))
    assert (folder / found["failures"][0]["run"] / incident).exists()
