"""Detect GPU Xids and OOM kills, which may explain a death."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.failure import evidence
from loadchaos.core.ledger.rows import DeviceRow

MOST_DEVICES, MOST_PROCESSES = 64, 32
"""GPUs and processes of a server that detectors follow."""


def new_xids(before: Mapping[str, float], now: Mapping[str, float]) -> list[int]:
    """Xids between two readings of one GPU; 0 stands for an unknown number. dcgm-exporter's gauge is the newest Xid
    ever, so that the same one again shows in the counter alone, where there is one.
    """
    last, newest = before.get("gpu_xid_last"), now.get("gpu_xid_last")
    counted = now.get("gpu_xids_total", 0.0) > before.get("gpu_xids_total", now.get("gpu_xids_total", 0.0))
    if newest and last is not None and newest != last:
        return [int(newest)]
    return [int(newest or 0)] if counted else []


def new_oom_kills(before: Mapping[str, float], now: Mapping[str, float]) -> int:
    total = now.get("host_oom_kills_total")
    return max(0, int(total - before.get("host_oom_kills_total", total))) if total is not None else 0


class DeviceFaultDetector(Detector):
    """Folds `device` rows."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[tuple[str, str, str], Mapping[str, float]] = {}

    def on_device(self, row: DeviceRow) -> None:
        key = str(row.get("source")), str(row.get("host")), str(row.get("device"))
        if key not in self._newest and len(self._newest) >= MOST_DEVICES:
            return
        values: Mapping[str, float] = row.get("values") or {}
        before, where, at_ns = self._newest.get(key), " ".join(key), int(row["at_ns"])
        if before:
            for number in new_xids(before, values):
                text = f"new Xid {number}" if number else "the Xid counter rose"
                self._add(f"NVRM: Xid (PCI:0000:00:00): {number}, ", text, where, at_ns)
            if killed := new_oom_kills(before, values):
                text = f"{killed} process{'es' if killed > 1 else ''} killed by the OOM killer"
                self._add("Memory cgroup out of memory: Killed process 0 (?)", text, where, at_ns)
        self._newest[key] = {**(before or {}), **values}

    def _add(self, kernel_line: str, text: str, where: str, at_ns: int) -> None:
        """Add the fault that `kernel_line` stands for. A signature names it as it names the same line in a kernel log."""
        for failure in classify_text(kernel_line):
            shown = evidence(where, text)
            self._pending.append(replace(failure, evidence=shown, at_ns=at_ns, process=where, explains_death=True))
