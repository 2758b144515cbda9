import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.injector import AttackInjector
from loadchaos.core.errors import OptionError
from tests.chaos.conftest import injector
from tests.rows import EmittedRows as Rows
from tests.waiting import until

# A server's tree: an API server whose child calls itself VLLM::EngineCore, as vLLM's do.
_PARENT = """\
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "VLLM::Engine" + "Core"])
print(child.pid, flush=True)
time.sleep(60)
"""


class Tree:
    def __init__(self) -> None:
        self.server = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.core = psutil.Process(int(self.server.stdout.readline()))
        until(lambda: "EngineCore" in " ".join(self.core.cmdline()))

    def pid(self) -> int | None:
        return self.server.pid


@pytest.fixture
def tree() -> Iterator[Tree]:
    one = Tree()
    yield one
    with contextlib.suppress(psutil.NoSuchProcess):
        one.core.kill()
    one.server.kill()
    with one.server:
        pass


@contextlib.asynccontextmanager
async def attacking(rows: Rows, tree: Tree, *specs: Any) -> AsyncIterator[AttackInjector]:
    replica = AttackedReplica("a", "http://127.0.0.1:9", tree.pid)
    attacks = injector(specs, replica, rows.append)
    try:
        yield attacks
    finally:
        await attacks.stop()


def kill(role: str, **fields: Any) -> dict[str, Any]:
    return {"process": "sigkill", "params": {"role": role}, "at_s": 0.0, **fields}


def stop(for_s: float) -> dict[str, Any]:
    return {"process": "sigstop", "params": {"role": "engine_core"}, "at_s": 0.0, "for_s": for_s}


async def test_sigkill_ends_the_engine_core_and_rows_carry_pid_and_signal(tree: Tree, rows: Rows) -> None:
    async with attacking(rows, tree, kill("engine_core")) as attacks:
        await attacks.start()
        await rows.until(lambda: rows.of(what="end"))
    until(lambda: tree.core.status() == psutil.STATUS_ZOMBIE)
    assert tree.server.poll() is None, "no other process was hit"
    for row in rows:
        assert (row["attack"], row["kind"], row["pid"], row["signal"]) == (
            "sigkill_engine_core",
            "process",
            tree.core.pid,
            signal.SIGKILL,
        )
    assert rows.of(what="end")[0]["ok"] is True
    assert "engine_core_proc_died" in rows[0]["effects"]
    assert "encoder_cache_miss" not in rows[0]["effects"]


async def test_signal_whose_effect_is_not_seen_is_no_success(
    tree: Tree, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "send_signal", lambda *_: None)
    async with attacking(rows, tree, kill("engine_core")) as attacks:
        await attacks.start()
        await rows.until(lambda: rows.of(what="end"))
    [end] = rows.of(what="end")
    assert end["ok"] is None
    assert end["text"] == f"SIGKILL to engine_core (pid {tree.core.pid}), and within 2 s its state did not show it"


async def test_sigstop_is_undone_after_its_time(tree: Tree, rows: Rows) -> None:
    async with attacking(rows, tree, stop(0.2)) as attacks:
        await attacks.start()
        await rows.until(lambda: tree.core.status() == psutil.STATUS_STOPPED)
        await rows.until(lambda: rows.of(what="end"))
    assert [r["what"] for r in rows] == ["begin", "undo", "end"]
    assert tree.core.status() != psutil.STATUS_STOPPED


async def test_sigstop_is_undone_when_the_run_ends(tree: Tree, rows: Rows) -> None:
    async with attacking(rows, tree, stop(60)) as attacks:
        await attacks.start()
        await rows.until(lambda: tree.core.status() == psutil.STATUS_STOPPED)
    assert rows.of(what="undo")[0]["ok"] is True
    assert tree.core.status() != psutil.STATUS_STOPPED


def test_sigstop_is_undone_when_loadchaos_is_killed(tree: Tree) -> None:
    script = (
        "import asyncio, sys, time\n"
        "from loadchaos.chaos.base import AttackedReplica\n"
        "from loadchaos.chaos.injector import AttackInjector, AttackTarget\n"
        "from loadchaos.server.dialects import DIALECTS\n"
        "from loadchaos.core.redact import Redactor\n"
        "async def attack():\n"
        "    spec = {'process': 'sigstop', 'params': {'role': 'engine_core'}, 'at_s': 0.0, 'for_s': 60.0}\n"
        "    replica = AttackedReplica('a', 'http://127.0.0.1:9', lambda: int(sys.argv[1]))\n"
        "    target = AttackTarget(DIALECTS['vllm'], [replica])\n"
        "    attacks = AttackInjector([spec], target, lambda row: None, Redactor())\n"
        "    await attacks.start()\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(attack())\n"
    )
    attacker = subprocess.Popen([sys.executable, "-c", script, str(tree.server.pid)])
    until(lambda: tree.core.status() == psutil.STATUS_STOPPED)
    attacker.kill()
    attacker.wait()
    until(lambda: tree.core.status() != psutil.STATUS_STOPPED)


async def test_process_attack_on_a_missing_role_hits_no_process(tree: Tree, rows: Rows) -> None:
    async with attacking(rows, tree, kill("worker")) as attacks:
        [(name, done)] = await attacks.preflight("process")
        assert (name, done.ok) == ("sigkill_worker", False)
        assert f"engine_core (pid {tree.core.pid})" in done.text
        await attacks.start()
        await rows.until(lambda: rows.of(what="end"))
    assert rows.of(what="end")[0]["ok"] is False
    assert tree.core.is_running()


async def test_process_attack_never_signals_a_server_on_another_machine(rows: Rows) -> None:
    attacks = injector([kill("engine_core")], AttackedReplica("a", "http://10.0.0.1:8000"), rows.append)
    [(_, done)] = await attacks.preflight("process")
    assert done.ok is False
    assert "http://10.0.0.1:8000" in done.text
    await attacks.start()
    await rows.until(lambda: rows.of(what="end"))
    await attacks.stop()
    assert (rows[-1]["ok"], rows[-1]["pid"]) == (False, None)


async def test_sigstop_undo_of_an_ended_process_succeeds(tree: Tree, rows: Rows) -> None:
    async with attacking(rows, tree, stop(60)) as attacks:
        await attacks.start()
        await rows.until(lambda: tree.core.status() == psutil.STATUS_STOPPED)
        os.kill(tree.core.pid, signal.SIGKILL)
        tree.server.kill()
        tree.server.wait()
    assert rows.of(what="undo")[0]["ok"] is True


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"process": "sigsegv"}, "sigkill, sigterm, sigstop"),
        ({"process": "sigkill", "params": {"role": "all"}}, "role"),
    ],
)
def test_process_attack_refuses_unknown_signals_and_roles(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        injector([spec], AttackedReplica("a", ""))
