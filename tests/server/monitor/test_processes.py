import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from loadchaos.core.redact import Redactor
from loadchaos.server.monitor import processes
from loadchaos.server.monitor.processes import ProcessMonitor
from tests.rows import EmittedRows
from tests.waiting import beside, until

ROLES = ((re.compile(r"EngineCore"), "engine_core"),)
# The last argument is what stands in its command line.
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, sys, time\n"
    f"p = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}, 'VLLM::EngineCore'])\n"
    "print(p.pid, flush=True)\n"
    "p.wait() if 'wait' in sys.argv else time.sleep(600)\n"
)


@contextlib.asynccontextmanager
async def watched(rows: EmittedRows, *more: str) -> AsyncIterator[tuple[subprocess.Popen[str], int]]:
    """A parent and its "engine core", watched; both are ended afterwards."""
    command = [sys.executable, "-c", PARENT, *more]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)  # noqa: ASYNC220 - a fraction of a second
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    watch = ProcessMonitor("a", ROLES, rows.append, Redactor(["planted-secret"]))
    watch.set_pid(parent.pid)
    try:
        async with beside(watch.run()):
            yield parent, child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


async def test_process_monitor_finds_the_tree_with_roles(rows: EmittedRows) -> None:
    async with watched(rows, "planted-secret") as (parent, child):
        # In the moment between fork and exec a child looks like its parent; its own title is told after that.
        await rows.until(lambda: rows.of("process", what="seen", pid=child, role="engine_core"))
        await rows.until(lambda: len(rows.of("process", what="sample")) >= 4)
        seen = {r["pid"]: r for r in rows.of("process", what="seen")}
        assert seen[parent.pid]["role"] == "api_server"
        assert seen[child]["role"] == "engine_core"
        assert "planted-secret" not in str(rows)
        sample = rows.of("process", what="sample", pid=child)[-1]
        assert sample["rss_bytes"] > 1_000_000
        assert sample["threads"] == 1
        assert sample["fds"] >= 3
        assert sample["state"] in "RSD"


async def test_process_monitor_records_a_zombie_as_gone(rows: EmittedRows) -> None:
    async with watched(rows) as (_, child):
        await rows.until(lambda: rows.of("process", what="seen", pid=child, role="engine_core"))
        os.kill(child, signal.SIGKILL)
        await rows.until(lambda: rows.of("process", what="gone", pid=child))
        row = rows.of("process", what="gone")[0]
        assert (row["role"], row["state"]) == ("engine_core", "Z")


async def test_process_monitor_records_stop_and_continue(rows: EmittedRows) -> None:
    async with watched(rows) as (_, child):
        await rows.until(lambda: rows.of("process", what="seen", pid=child, role="engine_core"))
        os.kill(child, signal.SIGSTOP)
        await rows.until(lambda: rows.of("process", what="sample", pid=child, state="T"))
        rows.clear()
        os.kill(child, signal.SIGCONT)
        await rows.until(lambda: rows.of("process", what="sample", pid=child, state="S"))


async def test_process_monitor_keeps_a_child_that_outlives_its_parent(rows: EmittedRows) -> None:
    async with watched(rows) as (parent, child):
        await rows.until(lambda: rows.of("process", what="seen", pid=child, role="engine_core"))
        os.kill(parent.pid, signal.SIGKILL)
        await rows.until(lambda: rows.of("process", what="gone", pid=parent.pid))
        rows.clear()
        await rows.until(lambda: rows.of("process", what="sample", pid=child))
        os.kill(child, signal.SIGKILL)
        await rows.until(lambda: rows.of("process", what="gone", pid=child))


async def test_process_monitor_follows_a_new_pid(rows: EmittedRows) -> None:
    async with watched(rows) as (first, _):
        await rows.until(lambda: rows.of("process", what="seen", pid=first.pid))
        async with watched(rows) as (second, _):
            await rows.until(lambda: rows.of("process", what="seen", pid=second.pid))


def test_process_monitor_leaves_out_a_child_that_has_not_begun_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    forking = "import os, time\npid = os.fork()\nif pid: print(pid, flush=True)\ntime.sleep(600)"
    command = [sys.executable, "-c", forking]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        others: set[int] = set()
        try:
            for oldest_s, expected in ((3600.0, {parent.pid}), (0.0, {parent.pid, child})):
                monkeypatch.setattr(processes, "_FORK_S", oldest_s)
                assert {process.pid for process, _ in processes._tree(parent.pid, others)} == expected
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_process_monitor_finds_a_grandchild_that_begins_later_and_reads_no_other_process_twice() -> None:
    others: set[int] = set()
    with subprocess.Popen(
        ["sh", "-c", "read go; sh -c 'sleep 600; :'; :"], stdin=subprocess.PIPE, start_new_session=True
    ) as root:
        assert root.stdin is not None
        try:
            assert [process.pid for process, _ in processes._tree(root.pid, others)] == [root.pid]
            assert os.getpid() in others
            root.stdin.write(b"go\n")
            root.stdin.flush()
            until(lambda: "sleep 600" in [title for _, title in processes._tree(root.pid, others)])
            assert not others & {process.pid for process, _ in processes._tree(root.pid, others)}
        finally:
            os.killpg(root.pid, signal.SIGKILL)


@pytest.mark.parametrize("turns", range(4))
async def test_processes_end_when_they_are_cancelled_while_the_root_changes(rows: EmittedRows, turns: int) -> None:
    """A server that comes back at the end of a run: `set_pid`, and `cancel` some turns of the loop later."""

    watch = ProcessMonitor("a", ROLES, rows.append, Redactor([]))
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.1)
    watch.set_pid(os.getpid())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=2 * processes.POLL_S + 1)
    ended = task.done()
    task.cancel()
    await asyncio.wait([task])
    assert ended
