import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bench.states.gateway import ApiGateway
from tests.embedded_server import EmbeddedServer
from tests.run.conftest import Row, Start, StartSim

STREAMS = {
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 200}}],
    "load": [{"users": 6, "for": "40s"}],
    "limits": {"first_byte": "60s", "between_bytes": "30s", "total": "2m"},
}

LOAD_OF_A_STALL = [{"users": 6, "for": "25s"}]


def signal_all(server: EmbeddedServer, number: int) -> None:
    root = psutil.Process(server.process.pid)
    for process in [*root.children(recursive=True), root]:
        process.send_signal(number)


def frozen(start: Start, server: EmbeddedServer, url: str, frozen_s: float) -> Row:
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
    start: Start, sim: StartSim, script: Callable[..., str], frozen_s: int
) -> None:
    server = sim()
    verdict = frozen(start, server, script("gateway.py", server.port), frozen_s)
    assert [(f["id"], f["count"]) for f in verdict["failures"]] == [("alive_but_hung", 1)]
    (hung,) = [s for s in verdict["states"] if s["state"] == "hung"]
    assert hung["at_s"] < 40
    (incident,) = verdict["incidents"]
    assert incident["kind"] == "hang"
    assert [s["state"] for s in verdict["states"]][-1] in ("healthy", "degraded")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_frozen_server_behind_a_gateway_with_a_health_page_of_its_own_is_a_hang(start: Start, sim: StartSim) -> None:
    server = sim()
    with ApiGateway(server.port) as own:
        verdict = frozen(start, server, own.url, 14)
    assert [i["kind"] for i in verdict["incidents"]] == ["hang"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_server_behind_a_gateway_is_an_outage_though_its_502s_are_accepted(
    start: Start, sim: StartSim, script: Callable[..., str]
) -> None:
    server = sim()
    texts = {"unexplained_http_error": "50", "unexplained_reset": "reset", "unexplained_truncated": "ended"}
    because = {"because": "the gateway does this", "until": "2999-12-31"}
    accept = [{"id": "gateway_plain", **because}, *({"id": i, "text": t, **because} for i, t in texts.items())]
    load = [{"users": 2, "for": "20s"}]
    run = start("--target", script("gateway.py", server.port), **{**STREAMS, "load": load}, accept=accept)
    run.loaded(5)
    signal_all(server, signal.SIGKILL)
    assert run.ends(120) == 1
    verdict = run.verdict()
    assert {e["name"]: e["verdict"] for e in verdict["expectations"]}["outages"] == "fail"
    assert [f["id"] for f in verdict["failures"] if not f["accepted"]] == ["outage_unexplained"]
    assert verdict["worth"].startswith("Not assessed: no crash is proved")
    assert "cause unknown behind this gateway" in run.output


@pytest.fixture
def nginx(tmp_path: Path, unused_port: int) -> Iterator[Callable[[int], str]]:
    """Starts an nginx that passes everything on to a port; gives its URL."""
    if (program := shutil.which("nginx")) is None:
        pytest.skip("nginx is not installed")
    started: list[subprocess.Popen[bytes]] = []

    def start_one(port: int) -> str:
        conf = tmp_path / "nginx.conf"
        paths = "".join(
            f"{name}_temp_path {tmp_path};" for name in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
        )
        server = (
            f"listen 127.0.0.1:{unused_port}; location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }}"
        )
        conf.write_text(
            f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/nginx.log; events {{}}\n"
            f"http {{ access_log off; proxy_http_version 1.1; {paths} server {{ {server} }} }}\n"
        )
        started.append(subprocess.Popen([program, "-p", str(tmp_path), "-c", str(conf)]))
        return f"http://127.0.0.1:{unused_port}"

    yield start_one
    for process in started:
        process.terminate()
        process.wait(10)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_longest_stall_is_the_same_direct_and_through_nginx(
    start: Start, sim: StartSim, nginx: Callable[[int], str]
) -> None:
    found = []
    for through in (False, True):
        server = sim()
        run = start("--target", nginx(server.port) if through else server.url, **STREAMS | {"load": LOAD_OF_A_STALL})
        run.loaded(20)
        time.sleep(8)
        signal_all(server, signal.SIGSTOP)
        time.sleep(7)
        signal_all(server, signal.SIGCONT)
        run.ends(120)
        found.append(run.verdict()["longest_stall"])
    direct, behind = found
    assert direct["seconds"] == pytest.approx(7, abs=1)
    assert behind["seconds"] == pytest.approx(direct["seconds"], abs=0.6)
    assert direct["requests"] == behind["requests"] == 6
