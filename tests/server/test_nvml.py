"""GPU memory of an ended server, with a stand-in for nvidia-smi."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from loadchaos.server import nvml
from loadchaos.server.process import launcher
from loadchaos.server.process.launcher import LaunchCommand, LaunchedServer


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose text the stand-in prints."""
    figures = tmp_path / "figures"
    script = tmp_path / "bin/nvidia-smi"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n[ "$1" = --query-gpu=memory.used ] && cat {figures}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    return figures


def test_memory_used_and_freed(smi: Path) -> None:
    smi.write_text("10\n2000\n")
    assert asyncio.run(nvml.memory_used_mib()) == [10, 2000]
    assert asyncio.run(nvml.wait_memory_freed([0, 1990], 0.0)) == (True, "the memory of 2 GPUs is free again")
    held = asyncio.run(nvml.wait_memory_freed([0, 1000], 0.0))
    assert held == (False, "GPU memory is not free after its end: 1000 MiB of GPU 1")


def test_memory_without_a_figure_is_unknown(smi: Path) -> None:
    smi.write_text("[N/A]\n")
    assert asyncio.run(nvml.memory_used_mib()) is None
    assert asyncio.run(nvml.wait_memory_freed([0], 0.0)) is None


def test_memory_without_a_gpu_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asyncio.run(nvml.memory_used_mib()) is None


@pytest.mark.parametrize("left", [0, 3000])
async def test_launched_server_end_tells_if_gpu_memory_is_free(
    smi: Path, tmp_path: Path, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_FREED_WITHIN_S", 0.1)
    rows: list[Any] = []
    (tmp_path / "run").mkdir()
    await asyncio.to_thread(smi.write_text, "500\n")
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    server = LaunchedServer(LaunchCommand(argv), tmp_path / "run", rows.append, argv)
    await server.start()
    await asyncio.to_thread(smi.write_text, f"{500 + left}\n")
    await server.stop(grace_s=2.0)
    end = rows[-1]
    assert (end["row"], end["what"], end["gpu_memory_freed"]) == ("launch", "end", left == 0)
