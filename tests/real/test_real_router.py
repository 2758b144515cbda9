"""poison_pill through a real vllm-router, in front of two embedded servers."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.real import servers
from tests.real.servers import NotInstalledError
from tests.simulator.conftest import Server

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
FLAGS = {"max_model_len": 4096, "num_speculative_tokens": 0}


@pytest.fixture
def replicas(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    """Two embedded servers with the defects of the test."""
    spec = SimulatorSpec("vllm", "0.32", request.param, FLAGS)
    started = [Server(command(spec, port=0)) for _ in range(2)]
    yield started
    for server in started:
        server.stop()


def verdict_through_router(replicas: list[Server], home: Path, *, watched: int) -> tuple[int, dict[str, Any]]:
    urls = [f"http://127.0.0.1:{server.port}" for server in replicas]
    try:
        router = servers.router(*urls)
    except NotInstalledError as e:
        pytest.skip(str(e))
    argv = [sys.executable, "-m", "loadchaos", "run", "poison_pill", "--target", router.url, "--no-live"]
    named = json.dumps([{"name": f"r{n}", "url": url} for n, url in enumerate(urls[:watched])])
    argv += ["--exporter-port", "0", "--set", f"target.replicas={named}", "--set", "target.on_death=stop"]
    for url in (router.url, *urls):
        argv += ["--authorize", url.removeprefix("http://")]
    with subprocess.Popen(router.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            wait_for(router.url)
            done = subprocess.run(argv, cwd=home, capture_output=True, text=True, timeout=300)
        finally:
            running.terminate()
    (path,) = home.glob("runs/*/verdict.json")
    return done.returncode, json.loads(path.read_text())


def wait_for(url: str) -> None:
    for _ in range(600):
        try:
            if urllib.request.urlopen(f"{url}/v1/models", timeout=2).status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer")


@pytest.mark.parametrize("replicas", [("near_max_oob",)], indirect=True)
def test_router_loses_replica_after_replica(replicas: list[Server], tmp_path: Path) -> None:
    code, verdict = verdict_through_router(replicas, tmp_path, watched=2)
    assert code == 1
    (lost,) = [e["actual"] for e in verdict["expectations"] if e["name"] == "replicas_lost"]
    assert lost == "2"


@pytest.mark.parametrize(("replicas", "watched", "code"), [((), 2, 0), ((), 1, 3)], indirect=["replicas"])
def test_router_passes_without_the_bug_and_proves_nothing_with_one_replica(
    replicas: list[Server], watched: int, code: int, tmp_path: Path
) -> None:
    found, verdict = verdict_through_router(replicas, tmp_path, watched=watched)
    assert found == code, verdict
    assert [e["actual"] for e in verdict["expectations"] if e["name"] == "replicas_lost"] == ["0"]
