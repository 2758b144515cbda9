import asyncio
import os
import signal
import subprocess
from pathlib import Path

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.injector import AttackInjector, AttackTarget
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.monitor.base import MonitorOutput, ServerAccess
from loadchaos.server.monitor.monitor import Monitor, MonitoredReplica
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.rows import EmittedRows
from tests.server.monitor.conftest import SmallServer


def test_monitor_sees_a_killed_engine_core_within_two_seconds(
    server: SmallServer, rows: EmittedRows, tmp_path: Path
) -> None:
    """`server` only lends its free port here."""
    log = tmp_path / "server.log"
    argv = command(SimulatorSpec(), server.port)

    async def story(api: subprocess.Popen[bytes]) -> None:
        target = MonitoredReplica("a", server.url, logs=(str(log),), pid=api.pid)
        watch = Monitor(
            [target],
            DIALECTS["vllm"],
            MonitorOutput(rows.append, rows.append, tmp_path / "run", Redactor()),
            ServerAccess(),
        )
        spec = {"admin": "reset_mm_cache", "every_s": 0.05}
        attacked = AttackTarget(DIALECTS["vllm"], [AttackedReplica("a", server.url)])
        attacks = AttackInjector([spec], attacked, rows.append, Redactor())
        await watch.start()
        await rows.until(lambda: rows.of("probe", what="health", ok=True))
        assert [done.ok for _, done in await attacks.preflight()] == [True]
        await attacks.start()
        await rows.until(lambda: rows.of("attack", what="end", ok=True))
        await rows.until(lambda: rows.of("metrics") and rows.of("process", role="engine_core"))
        assert rows.of("metrics")[0]["values"]["requests_running"] == 0
        core = rows.of("process", role="engine_core")[0]["pid"]
        rows.clear()
        os.kill(core, signal.SIGKILL)
        await rows.until(lambda: rows.of("process", what="gone", pid=core))
        await rows.until(lambda: rows.of("probe", what="tcp", error="refused"))
        await rows.until(lambda: rows.of("attack", what="end", ok=False))
        await rows.until(lambda: rows.of("process", what="gone", pid=api.pid))
        killed = rows.of("process", what="gone", pid=core)[0]["at_ns"]
        assert rows.of("probe", what="tcp", error="refused")[0]["at_ns"] - killed < 2e9
        await attacks.stop()
        await watch.stop()

    with log.open("wb") as out:
        api = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        asyncio.run(story(api))
        assert api.wait(10) == 0  # a dead vLLM exits with code 0
    finally:
        api.kill()
        api.wait()
    kept = (tmp_path / "run" / "watch" / "logs" / "a.log").read_text()
    assert "EngineCore" in kept
