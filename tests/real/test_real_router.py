"""poison_pill through a real vllm-router, in front of two embedded servers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadchaos.simulator.options import SimulatorSpec
from tests.embedded_server import EmbeddedServer
from tests.real import servers
from tests.real.conftest import Run, RunOutput, running, skipping

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
FLAGS = {"max_model_len": 4096, "num_speculative_tokens": 0}


@pytest.fixture
def replicas(request: pytest.FixtureRequest) -> Iterator[list[EmbeddedServer]]:
    """Two embedded servers with the defects of the test."""
    spec = SimulatorSpec("vllm", "0.32", request.param, FLAGS)
    started = [EmbeddedServer.of(spec) for _ in range(2)]
    yield started
    for server in started:
        server.stop()


def run_through_router(loadchaos: Run, replicas: list[EmbeddedServer], home: Path, *, watched: int) -> RunOutput:
    urls = [server.url for server in replicas]
    named = json.dumps([{"name": f"r{n}", "url": url} for n, url in enumerate(urls[:watched])])
    sets = ("--set", f"target.replicas={named}", "--set", "target.on_death=stop")
    with running(skipping(servers.router)(*urls), home / "router.log") as router:
        leave = (word for url in (router.url, *urls) for word in ("--authorize", url.removeprefix("http://")))
        return loadchaos("poison_pill", "--target", router.url, *sets, *leave)


def replicas_lost(result: RunOutput) -> list[str]:
    return [e["actual"] for e in result.verdict["expectations"] if e["name"] == "replicas_lost"]


@pytest.mark.parametrize("replicas", [("near_max_oob",)], indirect=True)
def test_router_loses_replica_after_replica(loadchaos: Run, replicas: list[EmbeddedServer], tmp_path: Path) -> None:
    result = run_through_router(loadchaos, replicas, tmp_path, watched=2)
    assert (result.code, replicas_lost(result)) == (1, ["2"]), result.output


@pytest.mark.parametrize(("replicas", "watched", "code"), [((), 2, 0), ((), 1, 3)], indirect=["replicas"])
def test_router_passes_without_the_bug_and_proves_nothing_with_one_replica(
    loadchaos: Run, replicas: list[EmbeddedServer], watched: int, code: int, tmp_path: Path
) -> None:
    result = run_through_router(loadchaos, replicas, tmp_path, watched=watched)
    assert (result.code, replicas_lost(result)) == (code, ["0"]), result.output
