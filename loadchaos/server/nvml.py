"""Read GPUs of this machine: figures and Xid errors through NVML, in its own thread, as NVML may block for seconds
(nvidia-ml-py is optional: dcgm-exporter gives the same); memory before and after a server by nvidia-smi, which is there
without it and can be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from loadchaos.core.ledger.rows import DeviceRow, Emit
from loadchaos.server.command_output import command_output

_EVERY_MS = 1000
_STOP_S = 3.0
_SMI = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
_SMI_TIMEOUT_S = 5.0
_POLL_S = 0.2
_SLACK_MIB = 64  # a driver keeps some for itself once a context has been made


async def memory_used_mib() -> list[int] | None:
    """Return MiB used of each GPU; None without a working nvidia-smi."""
    try:
        return [int(line) for line in (await command_output(_SMI, _SMI_TIMEOUT_S)).split()]
    except (OSError, ValueError):  # none, a driver that hangs, or a GPU without this figure: [N/A]
        return None


async def wait_memory_freed(before: Sequence[int], within_s: float) -> tuple[bool, str] | None:
    """Wait until no GPU uses more than `before` (MiB): success and a description; None: unknown."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        now = await memory_used_mib()
        if now is None or len(now) != len(before):
            return None
        held = {n: used - was for n, (used, was) in enumerate(zip(now, before, strict=True)) if used - was > _SLACK_MIB}
        if not held:
            return True, f"the memory of {len(now)} GPU{'s' * (len(now) != 1)} is free again"
        if asyncio.get_running_loop().time() > deadline:
            left = ", ".join(f"{mib} MiB of GPU {n}" for n, mib in held.items())
            return False, f"GPU memory is not free after its end: {left}"
        await asyncio.sleep(_POLL_S)


class NvmlMonitor:
    """Write `device` rows with source `nvml`. Does nothing without NVML or GPUs."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._xids: Counter[int] = Counter()
        self._last: dict[int, int] = {}

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _STOP_S)

    def _run(self) -> None:
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlInit()
            try:
                gpus = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
                names = [_name(nvml, gpu) for gpu in gpus]
                events = self._subscribe(nvml, gpus)
                while gpus and not self._stop.is_set():
                    for n, gpu in enumerate(gpus):
                        self._write(n, names[n], self._figures(nvml, n, gpu))
                    self._wait(nvml, events, gpus)
            finally:
                nvml.nvmlShutdown()

    def _subscribe(self, nvml: Any, gpus: list[Any]) -> Any:
        events = nvml.nvmlEventSetCreate()
        for gpu in gpus:
            with contextlib.suppress(nvml.NVMLError):  # some GPUs have no events
                nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _wait(self, nvml: Any, events: Any, gpus: list[Any]) -> None:
        """Wait for the next reading; an Xid ends the wait."""
        try:
            event = nvml.nvmlEventSetWait_v2(events, _EVERY_MS)
        except nvml.NVMLError:  # usually a timeout; without any events, wait here
            self._stop.wait(_EVERY_MS / 1000)
            return
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            uuid = nvml.nvmlDeviceGetUUID(event.device)
            n = next((i for i, gpu in enumerate(gpus) if nvml.nvmlDeviceGetUUID(gpu) == uuid), 0)
            self._xids[n] += 1
            self._last[n] = int(event.eventData)

    def _figures(self, nvml: Any, n: int, gpu: Any) -> dict[str, float]:
        readers: dict[str, Callable[[], Any]] = {
            "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
            "gpu_memory_free_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).free,
            "gpu_utilisation_ratio": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "gpu_throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
        }
        found = {"gpu_xids_total": float(self._xids[n]), "gpu_xid_last": float(self._last.get(n, 0))}
        for name, read in readers.items():
            with contextlib.suppress(nvml.NVMLError):  # not every GPU has every figure
                found[name] = float(read())
        return found

    def _write(self, n: int, name: str, values: dict[str, float]) -> None:
        row: DeviceRow = {
            "row": "device",
            "at_ns": time.monotonic_ns(),
            "source": "nvml",
            "host": "here",
            "device": f"gpu{n}",
            "name": name,
            "values": values,
        }
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            self._loop.call_soon_threadsafe(self._emit, row)


def _name(nvml: Any, gpu: Any) -> str:
    """`NVIDIA H200`; old versions give bytes, some GPUs none."""
    try:
        name = nvml.nvmlDeviceGetName(gpu)
    except (AttributeError, nvml.NVMLError):
        return ""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
