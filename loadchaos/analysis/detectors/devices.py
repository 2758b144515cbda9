"""What the machines under a server tell: Xids, kills for want of memory, memory that is never given back, and strain.

Pure over `device` rows, and `process` rows for their files. What a machine tells of a death is held back a little, so that
it can explain one seen beside it: a page is read every five seconds only, and dcgm-exporter renews its figures every 30 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.detectors.memory_leak import leaking
from loadchaos.analysis.detectors.saturation import exhausted, filled, slowed
from loadchaos.analysis.detectors.trend_tests import Samples
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.request_stats import S
from loadchaos.core.model import Row

_WAIT_NS = 10 * S
_MOST_DEVICES = 64
_MOST_SLOW = 120
_Key = tuple[str, str, str]


def xids(before: Mapping[str, float], now: Mapping[str, float]) -> list[int]:
    """Xids between two readings of one GPU; 0 stands for one whose number is not told.

    dcgm-exporter's gauge is the newest Xid ever, so that the same one again shows in the counter alone, where there is one.
    """
    last, newest = before.get("gpu_xid_last"), now.get("gpu_xid_last")
    counted = now.get("gpu_xids_total", 0.0) > before.get("gpu_xids_total", now.get("gpu_xids_total", 0.0))
    if newest and last is not None and newest != last:
        return [int(newest)]
    return [int(newest or 0)] if counted else []


def oom_kills(before: Mapping[str, float], now: Mapping[str, float]) -> int:
    """Processes that the kernel of a host killed for want of memory between two readings."""
    new = now.get("host_oom_kills_total")
    return max(0, int(new - before.get("host_oom_kills_total", new))) if new is not None else 0


@dataclass
class _Device:
    values: Mapping[str, float] = field(default_factory=dict)
    memory: Samples = field(default_factory=Samples)
    slow: list[tuple[float, int]] = field(default_factory=list)
    first: dict[str, tuple[float, float]] = field(default_factory=dict)  # (used or free, of how many) at first


class DeviceFaultDetector:
    """Folds `device` rows; `ripe` gives what waited long enough, `leaks` what creeps."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Device] = {}
        self._waiting: list[Failure] = []
        self._told: set[_Key] = set()
        self._said: set[tuple[str, ...]] = set()
        self._strains: list[Failure] = []

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        if row.get("row") == "process" and row.get("fds") and row.get("fd_limit"):
            key = "process", str(row.get("replica")), f"{row.get('role')} (pid {row.get('pid')})"
            if key in self._known or len(self._known) < _MOST_DEVICES:
                device = self._known.setdefault(key, _Device())
                self._files(key, device, row["fds"], row["fd_limit"], int(row["at_ns"]))
        if row.get("row") != "device":
            return
        key = str(row.get("source")), str(row.get("host")), str(row.get("device"))
        if key not in self._known and len(self._known) >= _MOST_DEVICES:
            return
        device = self._known.setdefault(key, _Device())
        values: Mapping[str, float] = row.get("values") or {}
        where, at_ns = f"{key[0]} {key[1]} {key[2]}", int(row["at_ns"])
        if device.values:
            for number in xids(device.values, values):
                said = f"Xid {number} is the newest" if number else "another Xid was counted"
                self._hold(f"NVRM: Xid (PCI:0000:00:00): {number}, ", said, where, at_ns)
            if killed := oom_kills(device.values, values):
                said = (
                    f"{killed} processes were killed for want of memory"
                    if killed > 1
                    else "a process was killed for want of memory"
                )
                self._hold("Memory cgroup out of memory: Killed process 0 (?)", said, where, at_ns)
        self._strained(key, device, values, at_ns)
        device.values = {**device.values, **values}
        if values.get("gpu_memory_used_bytes"):
            device.memory.add(at_ns / S, values["gpu_memory_used_bytes"])

    def _strained(self, key: _Key, device: _Device, values: Mapping[str, float], at_ns: int) -> None:
        if "gpu_throttle_reasons" in values:
            device.slow = [*device.slow[-_MOST_SLOW:], (at_ns / S, int(values["gpu_throttle_reasons"]))]
            if (found := slowed(device.slow)) is not None:
                title = f"{key[2]} on {key[1]} has slowed itself down for {found[0]:.0f} s: {found[1]}"
                self._tell("gpu_throttled", title, "cooling, power supply and neighbours of that GPU", key, at_ns)
        if "disk_free_bytes" in values and values.get("disk_size_bytes"):
            now = values["disk_free_bytes"], values["disk_size_bytes"]
            if filled([device.first.setdefault("disk", now), now]):
                title = f"{key[2]} on {key[1]} is full: {now[0] / 2**20:.0f} MB of {now[1] / 2**30:.0f} GB are left"
                remedy = "free the disk: caches of models, of torch.compile and Triton, logs"
                self._tell("no_space_left", title, remedy, key, at_ns)
        if "host_files_open" in values and values.get("host_files_limit"):
            self._files(key, device, values["host_files_open"], values["host_files_limit"], at_ns)

    def _files(self, key: _Key, device: _Device, n: float, most: float, at_ns: int) -> None:
        if exhausted([device.first.setdefault("files", (n, most)), (n, most)]):
            title = f"{key[2]} of {key[1]} has {n:.0f} files open, and may have {most:.0f}"
            remedy = "raise ulimit -n (LimitNOFILE, fs.file-max), or look at what is never closed in /proc/PID/fd"
            self._tell("fd_exhausted", title, remedy, key, at_ns)

    def _tell(self, name: str, title: str, remedy: str, key: _Key, at_ns: int) -> None:
        """Once a device."""
        if (name, *key) in self._said:
            return
        self._said.add((name, *key))
        shown = evidence(f"{key[0]} {key[1]}", title)
        self._strains.append(Failure(name, "node", title, shown, at_ns, process=key[2], remedy=remedy))

    def _hold(self, kernels: str, said: str, where: str, at_ns: int) -> None:
        """`kernels` is how a kernel would say it, so that one signature names both."""
        for failure in classify_text(kernels):
            self._waiting.append(replace(failure, evidence=evidence(where, said), at_ns=at_ns, process=where))

    def ripe(self, now_ns: int | None) -> list[Failure]:
        """What was told ten seconds ago or earlier; all of it for None (the run is over)."""
        found = [seen for seen in self._waiting if now_ns is None or now_ns - seen.at_ns >= _WAIT_NS]
        self._waiting = [seen for seen in self._waiting if seen not in found]
        return found

    def strains(self) -> list[Failure]:
        """What has strained a machine or a process since the last call, each once; that kills nobody by itself."""
        found, self._strains = self._strains, []
        return found

    def leaks(self, now_ns: int) -> list[Failure]:
        """GPUs whose memory in use rises and does not level off, each once."""
        found = []
        for key, device in self._known.items():
            trend = leaking(device.memory.points()) if key not in self._told else None
            if trend is None:
                continue
            self._told.add(key)
            begin, end = trend.begin / 2**20, trend.end / 2**20
            title = f"Memory of {key[2]} on {key[1]} grows and does not level off: {begin:.0f} MB to {end:.0f} MB"
            title += f" in {trend.span_s:.0f} s"
            remedy = "vLLM and LMDeploy take their GPU memory at start: what grows later is workspace, graphs or a leak"
            shown = evidence(f"{key[0]} {key[1]}", title)
            found.append(Failure("gpu_memory_leak", "degraded", title, shown, now_ns, process=key[2], remedy=remedy))
        return found
