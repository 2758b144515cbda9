import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loadchaos_vllm.sabotage import MODES as PLUGIN_MODES
from loadchaos_vllm.sabotage import parse

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.injector import AttackInjector
from loadchaos.core.attack_names import ENGINE_FAULTS
from loadchaos.core.errors import OptionError
from tests.chaos.conftest import injector
from tests.rows import EmittedRows as Rows


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "LOADCHAOS_SABOTAGE_TRIGGER": str(tmp_path / "trigger")}
    one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment)
    yield one
    one.kill()
    one.wait()


def attacks_on(pid: int | None, rows: Rows, **fields: Any) -> AttackInjector:
    spec = {"engine": "encoder_pop", "params": {"probability": "0.3"}, "at_s": 0.0, "for_s": 60.0, **fields}
    replica = AttackedReplica("a", "http://127.0.0.1:9", lambda: pid)
    return injector([spec], replica, rows.append)


async def test_engine_attack_writes_its_order_and_removes_it_at_the_end(
    server: subprocess.Popen[bytes], rows: Rows, tmp_path: Path
) -> None:
    attacks = attacks_on(server.pid, rows)
    assert [done.ok for _, done in await attacks.preflight("engine")] == [True]
    await attacks.start()
    await rows.until((tmp_path / "trigger").exists)
    [order] = parse((tmp_path / "trigger").read_text())
    assert (order.mode, order.probability) == ("encoder_pop", 0.3)
    await attacks.stop()
    assert not (tmp_path / "trigger").exists()
    assert rows[0]["kind"] == "engine"
    assert "encoder_cache_miss" in rows[0]["effects"]


async def test_engine_attack_preflight_fails_without_the_plugin(rows: Rows) -> None:
    attacks = attacks_on(os.getpid(), rows)
    [(_, done)] = await attacks.preflight("engine")
    assert done.ok is False
    assert "loadchaos-vllm" in done.text
    await attacks.stop()


async def test_engine_attack_never_overwrites_another_order(
    server: subprocess.Popen[bytes], rows: Rows, tmp_path: Path
) -> None:
    (tmp_path / "trigger").write_text("step_exit")

    attacks = attacks_on(server.pid, rows)
    await attacks.start()
    await rows.until(lambda: rows.of(what="end"))
    await attacks.stop()
    assert rows.of(what="end")[0]["ok"] is False
    assert (tmp_path / "trigger").read_text() == "step_exit"


@pytest.mark.parametrize("spec", [{"engine": "encoder_drop"}, {"params": {"chance": "1"}}])
def test_engine_attack_refuses_unknown_faults_and_options(rows: Rows, spec: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        attacks_on(None, rows, **spec)


def test_engine_faults_are_the_modes_of_the_plugin() -> None:
    assert set(ENGINE_FAULTS) == set(PLUGIN_MODES)
