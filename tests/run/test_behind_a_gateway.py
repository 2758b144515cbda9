import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.states.gateway import ApiGateway
from tests.run.conftest import Sim, Start

GATEWAY = Path(__file__).with_name("gateway.py")
STREAMS = {
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 200}}],
    "load": [{"users": 6, "for": "40s"}],
    "limits": {"first_byte": "60s", "between_bytes": "30s", "total": "2m"},
}


@pytest.fixture
def gateway() -> Iterator[Callable[[Any], str]]:
    """Starts a gateway in front of an embedded server and gives its URL."""
    started: list[subprocess.Popen[str]] = []

    def start_one(server: Any) -> str:
        port = server.url.rsplit(":", 1)[1]
        started.append(subprocess.Popen([sys.executable, str(GATEWAY), port], stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        return started[-1].stdout.readline().strip()

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def signal_all(server: Any, number: int) -> None:
    root = psutil.Process(server.process.pid)
    for process in [*root.children(recursive=True), root]:
        process.send_signal(number)


def frozen(start: Start, server: Any, url: str, frozen_s: float) -> Any:
    """Verdict of a run in which the server is frozen for a while."""
    run = start("--target", url, **STREAMS)
    run.loaded(20)
    time.sleep(8)
    signal_all(server, signal.SIGSTOP)
    time.sleep(frozen_s)
    signal_all(server, signal.SIGCONT)
    assert run.ends(120) == 1
    return run.verdict()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("frozen_s", [12, 25])
def test_frozen_server_behind_a_gateway_is_a_hang(
    start: Start, sim: Callable[..., Sim], gateway: Any, frozen_s: int
) -> None:
    server = sim()
    verdict = frozen(start, server, gateway(server), frozen_s)
    assert [(f["id"], f["count"]) for f in verdict["failures"]] == [("alive_but_hung", 1)]
    (hung,) = [s for s in verdict["states"] if s["state"] == "hung"]
    assert hung["at_s"] < 40
    (incident,) = verdict["incidents"]
    assert incident["kind"] == "hang"
    assert [s["state"] for s in verdict["states"]][-1] in ("healthy", "degraded")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_frozen_server_behind_a_gateway_with_a_health_page_of_its_own_is_a_hang(
    start: Start, sim: Callable[..., Sim]
) -> None:
    server = sim()
    with ApiGateway(int(server.url.rsplit(":", 1)[1])) as own:
        verdict = frozen(start, server, own.url, 14)
    assert [i["kind"] for i in verdict["incidents"]] == ["hang"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_server_behind_a_gateway_is_an_outage_though_its_502s_are_accepted(
    start: Start, sim: Callable[..., Sim], gateway: Any
) -> None:
    server = sim()
    ids = ("gateway_plain", "unexplained_http_error", "unexplained_reset", "unexplained_truncated")
    accept = [{"id": i, "because": "the gateway does this", "until": "2999-12-31"} for i in ids]
    load = [{"users": 2, "for": "20s"}]
    run = start("--target", gateway(server), **{**STREAMS, "load": load}, accept=accept)
    run.loaded(5)
    signal_all(server, signal.SIGKILL)
    assert run.ends(120) == 1
    verdict = run.verdict()
    assert {e["name"]: e["verdict"] for e in verdict["expectations"]}["outages"] == "fail"
    assert [f["id"] for f in verdict["failures"] if not f["accepted"]] == ["outage_unexplained"]
    assert verdict["worth"].startswith("Not assessed: no crash is proved")
    assert "cause unknown behind this gateway" in run.output
