"""A real vLLM that freezes or is killed where only a gateway in front of it is seen."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from bench.states.gateway import ApiGateway
from tests.real import servers
from tests.real.conftest import running, skipping, vllm_032

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
FROZEN_S = 14.0
PROFILE = {
    "name": "behind",
    "traffic": [
        {"name": "long", "payload": {"text": {"tokens": "1000..3000"}}, "output": {"max": 24}},
        {"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"max": 100}, "weight": 2},
    ],
    "load": [{"users": 6, "for": "75s"}],
    "limits": {"first_byte": "2m", "between_bytes": "1m", "total": "4m"},
}


def processes(port: int) -> list[psutil.Process]:
    """The server that listens at this port, its children first."""
    found = psutil.net_connections("tcp")
    listening = {c.laddr.port: c.pid for c in found if c.status == psutil.CONN_LISTEN and c.laddr}
    pid = listening[port]
    root = psutil.Process(pid)
    return [*root.children(recursive=True), root]


def verdict_of(home: Path, port: int, number: int) -> dict[str, Any]:
    """Verdict of a run through the gateway; the server gets the signal 30 s after its load began."""
    (home / "behind.yaml").write_text(json.dumps(PROFILE))
    argv = [sys.executable, "-m", "loadchaos", "run", "behind.yaml", "--no-live", "--exporter-port", "0"]
    env = {k: v for k, v in os.environ.items() if k != "CI"}
    with ApiGateway(port) as gateway, (home / "output").open("wb") as output:
        run = subprocess.Popen([*argv, "--target", gateway.url], cwd=home, stdout=output, stderr=output, env=env)
        while run.poll() is None and not any(
            b'"begin"' in p.read_bytes() for p in home.glob("runs/*/requests-0.jsonl")
        ):
            time.sleep(0.2)
        time.sleep(30)
        found = processes(port)
        for process in found:
            process.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(FROZEN_S)
            for process in found:
                process.send_signal(signal.SIGCONT)
        assert run.wait(600) == 1, (home / "output").read_text()
    return dict(json.loads(next(home.glob("runs/*/verdict.json")).read_text()))


QUICK = {
    "name": "behind",
    "target": {"on_death": "stop"},
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"max": 60}}],
    "load": [{"users": 2, "for": "30s"}],
    "limits": {"first_byte": "10s", "between_bytes": "10s", "total": "30s"},
}


@pytest.mark.parametrize(
    ("make", "failure"),
    [(servers.litellm, "gateway_litellm_backend_refused"), (servers.router, None)],
    ids=["litellm", "vllm-router"],
)
def test_server_killed_behind_a_proxy_that_lives_is_an_outage_and_no_death_of_the_proxy(
    tmp_path: Path, make: Callable[..., servers.Command], failure: str | None
) -> None:
    (tmp_path / "behind.yaml").write_text(json.dumps(QUICK))
    argv = [sys.executable, "-m", "loadchaos", "run", "behind.yaml", "--no-live", "--exporter-port", "0"]
    env = {k: v for k, v in os.environ.items() if k != "CI"}
    with (
        running(servers.embedded(), tmp_path / "backend.log") as backend,
        running(skipping(make)(backend.url), tmp_path / "proxy.log") as proxy,
        (tmp_path / "output").open("wb") as output,
    ):
        run = subprocess.Popen([*argv, "--target", proxy.url], cwd=tmp_path, stdout=output, stderr=output, env=env)
        until_s = time.monotonic() + 120
        while not any(b'"begin"' in p.read_bytes() for p in tmp_path.glob("runs/*/requests-0.jsonl")):
            assert time.monotonic() < until_s and run.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.2)
        time.sleep(5)
        for process in reversed(
            processes(urlsplit(backend.url).port or 0)
        ):  # the API server, before it tells of its engine
            process.kill()
        assert run.wait(200) == 1, (tmp_path / "output").read_text()
    verdict = json.loads(next(tmp_path.glob("runs/*/verdict.json")).read_text())
    lost(verdict)
    assert not any(f["severity"] == "engine_death" for f in verdict["failures"])
    assert failure is None or failure in {f["id"] for f in verdict["failures"]}, verdict["failures"]


def hung(verdict: dict[str, Any]) -> float:
    """Length of the only hang in seconds."""
    assert [i["kind"] for i in verdict["incidents"]] == ["hang"]
    states = verdict["states"]
    (at,) = [n for n, s in enumerate(states) if s["state"] == "hung"]
    return float(states[at + 1]["at_s"] - (states[at]["at_s"] - states[at]["noticed_after_s"]))


def lost(verdict: dict[str, Any]) -> None:
    """The verdict of a server that is gone behind a gateway."""
    assert {e["name"]: e["verdict"] for e in verdict["expectations"]}["outages"] == "fail"
    assert "outage_unexplained" in {f["id"] for f in verdict["failures"]}
    assert verdict["states"][-1]["state"] == "unreachable"


def test_real_vllm_frozen_behind_a_gateway_is_a_hang_with_its_length(tmp_path: Path) -> None:
    with running(vllm_032(), tmp_path / "vllm.log") as server:
        verdict = verdict_of(tmp_path, urlsplit(server.url).port or 0, signal.SIGSTOP)
    assert FROZEN_S - 1 <= hung(verdict) <= FROZEN_S + 3


def test_real_vllm_killed_behind_a_gateway_is_an_outage(tmp_path: Path) -> None:
    with running(vllm_032(), tmp_path / "vllm.log") as server:
        lost(verdict_of(tmp_path, urlsplit(server.url).port or 0, signal.SIGKILL))
