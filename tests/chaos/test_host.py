"""Processes beside the server that take its processors: there while it holds, gone afterwards, and with us."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from loadchaos.chaos import AttackedReplica, AttackInjector, host
from loadchaos.chaos.host import _SPIN
from loadchaos.core.errors import OptionError
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import DIALECTS


def hogs() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if p.is_running() and _SPIN in p.cmdline()]


def test_a_hog_runs_while_it_holds_and_is_gone_afterwards() -> None:
    async def story() -> None:
        rows: list[object] = []
        spec = {"host": "cpu", "for_s": 600.0, "params": {"processes": "2"}}
        here = AttackedReplica("a", "http://127.0.0.1:9", pid=os.getpid)
        attacks = AttackInjector([spec], DIALECTS["vllm"], [here], rows.append, Redactor())
        await attacks.start()
        deadline = time.monotonic() + 60
        while len(hogs()) < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert await attacks.stop() == []
        assert hogs() == []
        assert [r["what"] for r in rows] == ["begin", "end", "undo"]  # type: ignore[index]  # rows of the ledger

    asyncio.run(story())


def test_hogs_of_which_not_all_could_be_started_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = host._spin, list[subprocess.Popen[bytes]]()

    def spin() -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        started.append(real())
        return started[0]

    monkeypatch.setattr(host, "_spin", spin)
    done = asyncio.run(host.CpuHog(2).begin(AttackedReplica("a", "http://127.0.0.1:9", pid=os.getpid)))
    assert (done.ok, started[0].returncode) == (False, -signal.SIGKILL)
    assert done.text.startswith("1 of 2 processes")


def test_a_hog_does_not_outlive_the_one_who_started_it() -> None:
    popen = f"subprocess.Popen([sys.executable, '-c', {_SPIN!r}, str(os.getpid())])"
    starts = f"import os, subprocess, sys\nprint({popen}.pid)"
    done = subprocess.run([sys.executable, "-c", starts], capture_output=True, text=True, check=True, timeout=60)
    deadline = time.monotonic() + 60
    while psutil.pid_exists(int(done.stdout)):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)


def test_beside_a_server_elsewhere_nothing_is_run() -> None:
    async def story() -> None:
        attacks = AttackInjector(
            [{"host": "cpu"}], DIALECTS["vllm"], [AttackedReplica("a", "http://h:1")], lambda _: None, Redactor()
        )
        ((name, found),) = await attacks.preflight("host")
        await attacks.stop()
        assert (name, found.ok) == ("host_cpu", False)

    asyncio.run(story())


@pytest.mark.parametrize("params", [{"processes": "0"}, {"processes": "many"}, {"threads": "2"}])
def test_what_no_hog_can_be_is_refused(params: dict[str, str]) -> None:
    async def story() -> None:
        AttackInjector([{"host": "cpu", "params": params}], DIALECTS["vllm"], [], lambda _: None, Redactor())

    with pytest.raises(OptionError, match="processes"):
        asyncio.run(story())
