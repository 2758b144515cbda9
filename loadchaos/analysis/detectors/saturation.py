"""Detect throttled GPUs, full disks, file limits and GPU memory leaks.

What was exhausted before the run is not reported. None of it explains a death by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.detectors.devices import MOST_DEVICES
from loadchaos.analysis.detectors.memory_leak import leak_trend
from loadchaos.analysis.detectors.trend_tests import Samples
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.core.ledger.rows import DeviceRow, ProcessRow
from loadchaos.core.model import GPU_SLOWED, Severity
from loadchaos.core.units import NS_PER_S

THROTTLED_S = 30.0
"""Time for which a GPU throttles before that is a failure."""
_FEWEST = 3
_FULL_SHARE, _FULL_BYTES = 0.01, 1 << 30
_OPEN_SHARE = 0.95
_MOST_THROTTLE_READINGS = 120
_Key = tuple[str, str, str]


def throttled(readings: Sequence[tuple[float, int]]) -> tuple[float, str] | None:
    """(seconds, reasons) of a GPU throttled for 30 s or more until now. Readings are (second, reason bits)."""
    stretch: list[tuple[float, int]] = []
    for at_s, reasons in reversed(readings):
        if not reasons & sum(GPU_SLOWED):
            break
        stretch.append((at_s, reasons))
    if len(stretch) < _FEWEST or stretch[0][0] - stretch[-1][0] < THROTTLED_S:
        return None
    why = ", ".join(text for bit, text in GPU_SLOWED.items() if any(reasons & bit for _, reasons in stretch))
    return stretch[0][0] - stretch[-1][0], why


def disk_full(free: float, size: float) -> bool:
    return free < min(_FULL_SHARE * size, _FULL_BYTES)


def files_exhausted(n: float, limit: float) -> bool:
    return n >= _OPEN_SHARE * limit


@dataclass
class _Device:
    memory: Samples = field(default_factory=Samples)
    throttle: list[tuple[float, int]] = field(default_factory=list)
    first: dict[str, tuple[float, float]] = field(default_factory=dict)  # the first (used or free, size) readings


class SaturationDetector(Detector):
    """Folds `device` rows, and `process` rows for their open files. Reports each problem once per device."""

    slow = True

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[_Key, _Device] = {}
        self._reported: set[tuple[str, ...]] = set()

    def _device(self, key: _Key) -> _Device | None:
        if key not in self._devices and len(self._devices) >= MOST_DEVICES:
            return None
        return self._devices.setdefault(key, _Device())

    def on_process(self, row: ProcessRow) -> None:
        if (fds := row.get("fds")) and (limit := row.get("fd_limit")):
            key = "process", str(row.get("replica")), f"{row.get('role')} (pid {row.get('pid')})"
            if (device := self._device(key)) is not None:
                self._files(key, device, fds, limit, int(row["at_ns"]))

    def on_device(self, row: DeviceRow) -> None:
        key = str(row.get("source")), str(row.get("host")), str(row.get("device"))
        values: Mapping[str, float] = row.get("values") or {}
        if (device := self._device(key)) is None:
            return
        at_ns = int(row["at_ns"])
        if "gpu_throttle_reasons" in values:
            self._throttle(key, device, int(values["gpu_throttle_reasons"]), at_ns)
        if "disk_free_bytes" in values and values.get("disk_size_bytes"):
            self._disk(key, device, (values["disk_free_bytes"], values["disk_size_bytes"]), at_ns)
        if "host_files_open" in values and values.get("host_files_limit"):
            self._files(key, device, values["host_files_open"], values["host_files_limit"], at_ns)
        if values.get("gpu_memory_used_bytes"):
            device.memory.add(at_ns / NS_PER_S, values["gpu_memory_used_bytes"])

    def _throttle(self, key: _Key, device: _Device, reasons: int, at_ns: int) -> None:
        device.throttle = [*device.throttle[-_MOST_THROTTLE_READINGS:], (at_ns / NS_PER_S, reasons)]
        if (found := throttled(device.throttle)) is not None:
            title = f"{key[2]} on {key[1]} throttled for {found[0]:.0f} s: {found[1]}"
            remedy = "Check cooling, power supply and the neighbours of that GPU."
            self._add("gpu_throttled", title, remedy, key, at_ns)

    def _disk(self, key: _Key, device: _Device, now: tuple[float, float], at_ns: int) -> None:
        first = device.first.setdefault("disk", now)
        if disk_full(*now) and not disk_full(*first):
            title = f"{key[2]} on {key[1]} is full: {now[0] / 2**20:.0f} MB of {now[1] / 2**30:.0f} GB free"
            remedy = "Free disk space: model caches, torch.compile and Triton caches, logs."
            self._add("no_space_left", title, remedy, key, at_ns)

    def _files(self, key: _Key, device: _Device, n: float, limit: float, at_ns: int) -> None:
        first = device.first.setdefault("files", (n, limit))
        if files_exhausted(n, limit) and not files_exhausted(*first):
            title = f"{key[2]} of {key[1]} has {n:.0f} of {limit:.0f} files open"
            remedy = "Raise ulimit -n (LimitNOFILE, fs.file-max), or find what is never closed in /proc/PID/fd."
            self._add("fd_exhausted", title, remedy, key, at_ns)

    def _add(self, name: str, title: str, remedy: str, key: _Key, at_ns: int) -> None:
        if (name, *key) in self._reported:
            return
        self._reported.add((name, *key))
        severity: Severity = "degraded" if name == "gpu_memory_leak" else "node"
        shown = evidence(f"{key[0]} {key[1]}", title)
        self._pending.append(Failure(name, severity, title, shown, at_ns, process=key[2], remedy=remedy))

    def poll(self, now_ns: int) -> list[Failure]:
        exhausted, self._pending = self._pending, []
        for key, device in self._devices.items():
            if ("gpu_memory_leak", *key) in self._reported or (trend := leak_trend(device.memory.points())) is None:
                continue
            begin, end = trend.begin / 2**20, trend.end / 2**20
            title = (
                f"Memory of {key[2]} on {key[1]} grows steadily: {begin:.0f} MB to {end:.0f} MB in {trend.span_s:.0f} s"
            )
            remedy = "vLLM and LMDeploy take GPU memory at start: later growth is workspace, CUDA graphs or a leak."
            self._add("gpu_memory_leak", title, remedy, key, now_ns)
        leaks, self._pending = self._pending, []
        return [*leaks, *exhausted]
