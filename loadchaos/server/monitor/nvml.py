"""GPUs of this machine through NVML, where nvidia-ml-py is installed beside us: figures each second, and Xids as they come.

Not needed: with dcgm-exporter `watch: {dcgm: [URL]}` tells the same. NVML may block for seconds on a GPU that is lost, so
that it has a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from loadchaos.core.ledger.rows import DeviceRow, Emit

_EVERY_MS = 1000
_STOP_S = 3.0


class NvmlWatch:
    """`start` and `stop` on the loop; rows of kind `device` with source `nvml`. Without NVML or GPUs it does nothing."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._xids: Counter[int] = Counter()
        self._last: dict[int, int] = {}

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    async def stop(self) -> None:
        """Look no more."""
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
                        self._tell(n, names[n], self._figures(nvml, n, gpu))
                    self._wait(nvml, events, gpus)
            finally:
                nvml.nvmlShutdown()

    def _subscribe(self, nvml: Any, gpus: list[Any]) -> Any:
        events = nvml.nvmlEventSetCreate()
        for gpu in gpus:
            with contextlib.suppress(nvml.NVMLError):  # some GPUs tell of no events
                nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _wait(self, nvml: Any, events: Any, gpus: list[Any]) -> None:
        """Until the next look is due; an Xid ends the wait."""
        try:
            event = nvml.nvmlEventSetWait_v2(events, _EVERY_MS)
        except nvml.NVMLError:  # a timeout is the rule; where there are no events at all, wait otherwise
            self._stop.wait(_EVERY_MS / 1000)
            return
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            uuid = nvml.nvmlDeviceGetUUID(event.device)
            n = next((i for i, gpu in enumerate(gpus) if nvml.nvmlDeviceGetUUID(gpu) == uuid), 0)
            self._xids[n] += 1
            self._last[n] = int(event.eventData)

    def _figures(self, nvml: Any, n: int, gpu: Any) -> dict[str, float]:
        asked: dict[str, Callable[[], Any]] = {
            "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
            "gpu_memory_free_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).free,
            "gpu_utilisation_ratio": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "gpu_throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
        }
        found = {"gpu_xids_total": float(self._xids[n]), "gpu_xid_last": float(self._last.get(n, 0))}
        for name, ask in asked.items():
            with contextlib.suppress(nvml.NVMLError):  # not every GPU tells everything
                found[name] = float(ask())
        return found

    def _tell(self, n: int, name: str, values: dict[str, float]) -> None:
        row: DeviceRow = {
            "row": "device", "at_ns": time.monotonic_ns(), "source": "nvml", "host": "here", "device": f"gpu{n}",
            "name": name, "values": values,
        }  # fmt: skip
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            self._loop.call_soon_threadsafe(self._emit, row)


def _name(nvml: Any, gpu: Any) -> str:
    """`NVIDIA H200`; bytes in old versions, nothing where it is not told."""
    try:
        name = nvml.nvmlDeviceGetName(gpu)
    except (AttributeError, nvml.NVMLError):
        return ""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
