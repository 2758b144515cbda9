import asyncio
import errno
import os
import signal
import subprocess
import sys

import psutil
import pytest

from loadchaos.chaos import host
from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.host import _SPIN
from loadchaos.core.errors import OptionError
from tests.chaos.conftest import injector
from tests.waiting import until, until_async


def busy_processes() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if p.is_running() and _SPIN in p.cmdline()]


async def test_cpu_hog_runs_while_the_attack_holds() -> None:
    rows: list[object] = []
    spec = {"host": "cpu", "for_s": 600.0, "params": {"processes": "2"}}
    here = AttackedReplica("a", "http://127.0.0.1:9", pid=os.getpid)
    attacks = injector([spec], here, rows.append)
    await attacks.start()
    await until_async(lambda: len(busy_processes()) == 2, "two processes")
    assert await attacks.stop() == []
    assert busy_processes() == []
    assert [r["what"] for r in rows] == ["begin", "end", "undo"]  # type: ignore[index]  # rows of the ledger


@pytest.mark.parametrize("stopped", [False, True])
async def test_cpu_hog_without_cpu_time_had_no_effect(stopped: bool) -> None:
    hog, here = host.CpuHog(2), AttackedReplica("a", "http://127.0.0.1:9", pid=os.getpid)
    assert (await hog.begin(here)).ok
    for process in busy_processes() if stopped else ():
        process.suspend()
    await asyncio.sleep(1.0)
    assert (await hog.undo(here)).ok
    assert ("s of CPU time" in hog.without_effect(here)) is stopped


def test_cpu_hog_ends_its_processes_when_not_all_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = host._spin, list[subprocess.Popen[bytes]]()

    def spin() -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        started.append(real())
        return started[0]

    monkeypatch.setattr(host, "_spin", spin)
    done = asyncio.run(host.CpuHog(2).begin(AttackedReplica("a", "http://127.0.0.1:9", pid=os.getpid)))
    assert (done.ok, started[0].returncode) == (False, -signal.SIGKILL)
    assert done.text.startswith("only 1 of 2 busy processes started")


def test_cpu_hog_ends_with_its_parent() -> None:
    popen = f"subprocess.Popen([sys.executable, '-c', {_SPIN!r}, str(os.getpid())])"
    starts = f"import os, subprocess, sys\nprint({popen}.pid)"
    done = subprocess.run([sys.executable, "-c", starts], capture_output=True, text=True, check=True, timeout=60)
    until(lambda: not psutil.pid_exists(int(done.stdout)), "its end")


async def test_cpu_hog_is_refused_for_a_server_on_another_machine() -> None:
    attacks = injector([{"host": "cpu"}], AttackedReplica("a", "http://h:1"))
    ((name, found),) = await attacks.preflight("host")
    await attacks.stop()
    assert (name, found.ok) == ("host_cpu", False)


@pytest.mark.parametrize("params", [{"processes": "0"}, {"processes": "many"}, {"threads": "2"}])
async def test_cpu_hog_refuses_bad_params(params: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="processes"):
        injector([{"host": "cpu", "params": params}], AttackedReplica("a", ""))
