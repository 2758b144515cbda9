"""A real vLLM that freezes or is killed where only a gateway in front of it is seen."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from bench.states.gateway import ApiGateway
from tests.real import servers
from tests.real.conftest import Server, listeners, running, skipping, vllm_032, wait_for_requests
from tests.warm_command import outside_ci

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


def processes(url: str) -> list[psutil.Process]:
    """The server that listens there, its children first."""
    (root,) = listeners(url)
    return [*root.children(recursive=True), root]


@contextlib.contextmanager
def loaded(home: Path, profile: dict[str, Any], target: str) -> Iterator[None]:
    """A run with requests in the block, which fails."""
    (home / "behind.yaml").write_text(json.dumps(profile))
    argv = [sys.executable, "-m", "loadchaos", "run", "behind.yaml", "--no-live", "--exporter-port", "0"]
    with (home / "output").open("wb") as output:
        run = subprocess.Popen([*argv, "--target", target], cwd=home, stdout=output, stderr=output, env=outside_ci())
    wait_for_requests(home)
    yield
    assert run.wait(600) == 1, (home / "output").read_text()


def written_verdict(home: Path) -> dict[str, Any]:
    return dict(json.loads(next(home.glob("runs/*/verdict.json")).read_text()))


def verdict_of(home: Path, server: Server, number: int) -> dict[str, Any]:
    """Verdict of a run through the gateway; the server gets the signal 30 s after its load began."""
    with ApiGateway(urlsplit(server.url).port or 0) as gateway, loaded(home, PROFILE, gateway.url):
        time.sleep(30)
        found = processes(server.url)
        for process in found:
            process.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(FROZEN_S)
            for process in found:
                process.send_signal(signal.SIGCONT)
    return written_verdict(home)


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
    with (
        running(servers.embedded(), tmp_path / "backend.log") as backend,
        running(skipping(make)(backend.url), tmp_path / "proxy.log") as proxy,
        loaded(tmp_path, QUICK, proxy.url),
    ):
        time.sleep(5)
        for process in reversed(processes(backend.url)):  # the API server, before it tells of its engine
            process.kill()
    verdict = written_verdict(tmp_path)
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
        verdict = verdict_of(tmp_path, server, signal.SIGSTOP)
    assert FROZEN_S - 1 <= hung(verdict) <= FROZEN_S + 3


def test_real_vllm_killed_behind_a_gateway_is_an_outage(tmp_path: Path) -> None:
    with running(vllm_032(), tmp_path / "vllm.log") as server:
        lost(verdict_of(tmp_path, server, signal.SIGKILL))
