import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import Callable

import psutil
import pytest

from tests.rows import S
from tests.run.conftest import Run, Start, StartSim, embedded_target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TEXT = [{"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}}]
LOAD = [{"rate": "10/s", "law": "constant", "for": "5m", "max_in_flight": 32}]
LATEST_S = 3.0
"""How long after a fault its incident may open, on a machine that has other work."""

Kill = Callable[[str, int], None]


def asks_too_much(url: str, _pid: int) -> None:
    """A prompt near the end of the context: what the planted defect dies of."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "word " * 1550}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with contextlib.suppress(OSError):
        urllib.request.urlopen(request, timeout=20).read()


def engine_is_killed(_url: str, pid: int) -> None:
    for child in psutil.Process(pid).children():
        child.send_signal(signal.SIGKILL)


def server_is_killed(_url: str, pid: int) -> None:
    psutil.Process(pid).send_signal(signal.SIGKILL)


DEATHS: list[tuple[Kill, str]] = [
    (asks_too_much, "index_oob_indexkernel"),
    (engine_is_killed, "engine_core_proc_died"),
    (asks_too_much, "index_oob_indexkernel"),
    (server_is_killed, "engine_death_unexplained"),
    (engine_is_killed, "engine_core_proc_died"),
]


def five_deaths(run: Run, url: Callable[[], str], pid: Callable[[], int], start_again: Callable[[], None]) -> list[int]:
    """Times (CLOCK_MONOTONIC, ns) of deaths under load, each once healthy."""
    times = []
    for n, (kill, _) in enumerate(DEATHS):
        run.wait_for(
            "requests-*.jsonl", n=sum(1 for _ in run.rows("requests-*.jsonl", outcome="ok")) + 10, outcome="ok"
        )
        times.append(time.monotonic_ns())
        kill(url(), pid())
        run.wait_for(row="state", to="dead", n=n + 1, limit_s=60)
        start_again()
        run.wait_for(row="gate", open=True, n=n + 1, limit_s=60)
    run.wait_for("requests-*.jsonl", n=sum(1 for _ in run.rows("requests-*.jsonl", outcome="ok")) + 10, outcome="ok")
    return times


def has_five_incidents(run: Run, times: list[int]) -> None:
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.output
    incidents = run.verdict()["incidents"]
    assert [(i["kind"], i["id"]) for i in incidents] == [("death", id_) for _, id_ in DEATHS], run.output
    for incident, at_ns in zip(incidents, times, strict=True):
        incident = json.loads(
            (run.folder / "incidents" / f"{incident['n']:03d}-{incident['id']}" / "incident.json").read_text()
        )
        assert 0 <= incident["opened_ns"] - at_ns <= LATEST_S * S
        assert incident["back_at_s"] is not None
    folders = sorted(p.name for p in (run.folder / "incidents").glob("0*"))
    assert folders == [f"{n:03d}-{id_}" for n, (_, id_) in enumerate(DEATHS, 1)]
    (deaths,) = run.verdict()["expectations"]
    assert (deaths["actual"], deaths["verdict"]) == ("5", "fail")


def test_on_death_restart_reports_each_death_separately(start: Start) -> None:
    target = embedded_target("near_max_oob", max_model_len=2048, num_speculative_tokens=0)
    run = start(
        target={"on_death": {"restart": {"at_most": 9}}, **target},
        traffic=TEXT,
        load=LOAD,
        expect=["engine_deaths == 0"],
    )

    def url() -> str:
        return str(run.rows(row="facts")[-1]["facts"]["admin_url"])

    def pid() -> int:
        run.note_pids()
        return int(run.pids["server"])

    has_five_incidents(run, five_deaths(run, url, pid, lambda: None))
    run.all_gone()


def test_on_death_wait_reports_each_death_separately(start: Start, sim: StartSim, unused_port: int) -> None:
    flags = ("--flag", "max_model_len=2048", "--flag", "num_speculative_tokens=0", "--port", str(unused_port))
    planted = ("--defect", "near_max_oob", *flags)
    servers = [sim(*planted)]
    log = servers[0].log

    def start_again() -> None:
        servers[-1].process.wait(60)
        servers.append(sim(*planted, log=log))

    run = start(
        "--target",
        servers[0].url,
        "--server-log",
        str(log),
        target={"on_death": "wait"},
        traffic=TEXT,
        load=LOAD,
        expect=["engine_deaths == 0"],
    )
    has_five_incidents(run, five_deaths(run, lambda: servers[-1].url, lambda: servers[-1].process.pid, start_again))
