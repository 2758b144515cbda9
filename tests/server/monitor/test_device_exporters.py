"""Device exporters with real pages, and NVML with a stand-in."""

import asyncio
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from loadchaos.server.monitor import device_exporters as looking
from loadchaos.server.monitor.device_exporters import DCGM, NODE, DeviceScraper
from loadchaos.server.nvml import NvmlMonitor
from tests.rows import EmittedRows
from tests.server.monitor.conftest import SmallServer
from tests.waiting import beside

PAGES = Path(__file__).parent / "pages"
MIB = 1024 * 1024


def watched(
    server: SmallServer, rows: EmittedRows, exporter: Any, page: bytes, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "DEVICE_SCRAPE_EVERY_S", 0.05)

    async def story() -> None:
        server.pages["/metrics"] = (200, page)
        await server.start()
        watch = DeviceScraper(exporter, f"{server.url}/metrics", rows.append, rows.append)
        async with beside(watch.run()):
            await rows.until(until)
        await server.stop()

    asyncio.run(story())


def values(rows: EmittedRows, device: str) -> dict[str, float]:
    found: dict[str, float] = rows.of("device", device=device)[0]["values"]
    return found


def test_device_scraper_reads_dcgm_per_gpu(
    server: SmallServer, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (PAGES / "dcgm_4.2.txt").read_bytes()
    watched(server, rows, DCGM, page, lambda: rows.of("device", device="gpu1"), monkeypatch)
    assert values(rows, "gpu0") == {
        "gpu_sm_clock_hz": 1980e6,
        "gpu_memory_temperature_c": 61,
        "gpu_temperature_c": 54,
        "gpu_power_w": 512.333,
        "gpu_utilisation_ratio": pytest.approx(0.97),
        "gpu_xid_last": 0,
        "gpu_memory_free_bytes": 7411 * MIB,
        "gpu_memory_used_bytes": 73678 * MIB,
    }
    assert values(rows, "gpu1")["gpu_xid_last"] == 31
    assert values(rows, "gpu1")["gpu_memory_used_bytes"] == 4 * MIB, "a part of a GPU is not added to the whole"
    assert {r["host"] for r in rows.of("device")} == {f"127.0.0.1:{server.port}"}


def test_device_scraper_reads_host_and_real_disks(
    server: SmallServer, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (PAGES / "node_1.8.txt").read_bytes()
    watched(server, rows, NODE, page, lambda: rows.of("device", device="disk /models"), monkeypatch)
    host = values(rows, "host")
    assert (host["host_memory_total_bytes"], host["host_oom_kills_total"]) == (5.40123123712e11, 3)
    assert (host["host_files_open"], host["host_load_1m"]) == (5472, 12.5)
    assert values(rows, "disk /") == {"disk_free_bytes": 2.13448704e11, "disk_size_bytes": 4.9e11}
    assert {r["device"] for r in rows.of("device")} == {"host", "disk /", "disk /models"}


@pytest.mark.parametrize(
    ("page", "why"),
    [(b"go_goroutines 8\n", "no metrics of dcgm"), (b"", "no metrics of dcgm")],
)
def test_device_scraper_page_of_another_program_is_a_gap(
    page: bytes, why: str, server: SmallServer, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(server, rows, DCGM, page, lambda: rows.of("gap", source="dcgm"), monkeypatch)
    assert why in rows.of("gap", source="dcgm")[0]["why"]


class NvmlError(Exception):
    """The error of pynvml for missing figures and waits without an event."""


def fake_nvml() -> types.ModuleType:
    """Stand-in for pynvml: two GPUs, the second with an Xid and no power."""
    events = [types.SimpleNamespace(eventType=8, eventData=79, device=1)]

    def wait(_set: str, _ms: int) -> Any:
        if not events:
            raise NvmlError("Timeout")
        return events.pop()

    def power(gpu: int) -> int:
        if gpu:
            raise NvmlError("Not Supported")
        return 300_000

    module = types.ModuleType("pynvml")
    vars(module).update(
        {
            "NVMLError": NvmlError,
            "NVML_TEMPERATURE_GPU": 0,
            "nvmlEventTypeXidCriticalError": 8,
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda n: n,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlEventSetCreate": lambda: "set",
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlEventSetWait_v2": wait,
            "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=5 * MIB, free=7 * MIB),
            "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=40),
            "nvmlDeviceGetTemperature": lambda *_: 50,
            "nvmlDeviceGetPowerUsage": power,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 4,
            "nvmlDeviceGetName": lambda n: b"NVIDIA H%d" % n,
        }
    )
    return module


async def test_nvml_monitor_writes_figures_and_xids(rows: EmittedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())

    watch = NvmlMonitor(rows.append)
    watch.start()
    await rows.until(lambda: any(r["values"]["gpu_xid_last"] == 79 for r in rows.of("device", device="gpu1")))
    await watch.stop()
    assert rows.of("device", device="gpu1")[0]["name"] == "NVIDIA H1"
    assert values(rows, "gpu0")["gpu_power_w"] == 300
    assert "gpu_power_w" not in values(rows, "gpu1")
    assert {r["values"]["gpu_xids_total"] for r in rows.of("device", device="gpu0")} == {0}


async def test_nvml_monitor_without_nvml_writes_nothing(rows: EmittedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    watch = NvmlMonitor(rows.append)
    watch.start()
    await watch.stop()
    assert rows == []
