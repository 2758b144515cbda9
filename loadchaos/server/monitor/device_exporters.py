"""Scrape dcgm-exporter (3 and 4) and node-exporter (1). Figures a page lacks are left out."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loadchaos.core.ledger.rows import Emit
from loadchaos.server.dialects.base import MetricName
from loadchaos.server.monitor.exposition import PageParser
from loadchaos.server.monitor.gaps import CoverageGap
from loadchaos.server.monitor.http_get import get, parse_endpoint
from loadchaos.server.repeat import repeat

DEVICE_SCRAPE_EVERY_S = 5.0
"""Period of reads of `watch: {dcgm, node}`."""
_LIMIT_S = 5.0
_MIB = 1024.0 * 1024.0
_NO_DISKS = frozenset({
    "tmpfs", "devtmpfs", "overlay", "squashfs", "ramfs", "proc", "sysfs", "cgroup2", "nsfs", "iso9660", "fuse.lxcfs",
})  # fmt: skip


@dataclass(frozen=True)
class DeviceExporter:
    """One kind of exporter. `scale`: factors by our names; `device_of`: device of a series, None leaves it out."""

    kind: Literal["dcgm", "node"]
    names: Sequence[MetricName]
    scale: Mapping[str, float]
    device_of: Callable[[Mapping[str, str]], str | None]


def _gpu(labels: Mapping[str, str]) -> str | None:
    """`gpu0`; None for parts of a GPU (MIG), whose share of it is not known."""
    return None if labels.get("GPU_I_ID") or "gpu" not in labels else f"gpu{labels['gpu']}"


def _of_host(labels: Mapping[str, str]) -> str | None:
    if "mountpoint" not in labels:
        return "host"
    return None if labels.get("fstype") in _NO_DISKS else f"disk {labels['mountpoint']}"


DCGM = DeviceExporter(
    "dcgm",
    (
        MetricName("gpu_memory_used_bytes", ("DCGM_FI_DEV_FB_USED",)),
        MetricName("gpu_memory_free_bytes", ("DCGM_FI_DEV_FB_FREE",)),
        MetricName("gpu_utilisation_ratio", ("DCGM_FI_DEV_GPU_UTIL",)),
        MetricName("gpu_temperature_c", ("DCGM_FI_DEV_GPU_TEMP",)),
        MetricName("gpu_memory_temperature_c", ("DCGM_FI_DEV_MEMORY_TEMP",)),
        MetricName("gpu_power_w", ("DCGM_FI_DEV_POWER_USAGE",)),
        MetricName("gpu_sm_clock_hz", ("DCGM_FI_DEV_SM_CLOCK",)),
        MetricName("gpu_throttle_reasons", ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")),
        MetricName("gpu_xid_last", ("DCGM_FI_DEV_XID_ERRORS",)),
        MetricName("gpu_xids_total", ("DCGM_EXP_XID_ERRORS_COUNT",)),
        MetricName("gpu_ecc_double_total", ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",)),
    ),
    {
        "gpu_memory_used_bytes": _MIB,
        "gpu_memory_free_bytes": _MIB,
        "gpu_utilisation_ratio": 0.01,
        "gpu_sm_clock_hz": 1e6,
    },
    _gpu,
)
NODE = DeviceExporter(
    "node",
    (
        MetricName("host_memory_total_bytes", ("node_memory_MemTotal_bytes",)),
        MetricName("host_memory_available_bytes", ("node_memory_MemAvailable_bytes",)),
        MetricName("host_swap_free_bytes", ("node_memory_SwapFree_bytes",)),
        MetricName("host_oom_kills_total", ("node_vmstat_oom_kill",)),
        MetricName("host_files_open", ("node_filefd_allocated",)),
        MetricName("host_files_limit", ("node_filefd_maximum",)),
        MetricName("host_load_1m", ("node_load1",)),
        MetricName("host_boot_time_s", ("node_boot_time_seconds",)),
        MetricName("disk_size_bytes", ("node_filesystem_size_bytes",)),
        MetricName("disk_free_bytes", ("node_filesystem_avail_bytes",)),
    ),
    {},
    _of_host,
)


class DeviceScraper:
    """Scrape one exporter until cancelled; `run()` is the task. Writes `device` rows."""

    def __init__(
        self,
        exporter: DeviceExporter,
        url: str,
        emit_metrics: Emit,
        emit_event: Emit,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Raise ValueError for a wrong URL."""
        self._exporter, self._endpoint, self._emit = exporter, parse_endpoint(url, tls), emit_metrics
        self._parser = PageParser(exporter.names, exporter.device_of)
        self._gap = CoverageGap(emit_event, "", exporter.kind)

    async def run(self) -> None:
        await repeat(DEVICE_SCRAPE_EVERY_S, self._scrape)

    async def _scrape(self) -> None:
        answer = await get(self._endpoint, _LIMIT_S)  # without the server's headers: this is another program
        if answer.error is not None or answer.status != 200:
            self._gap.open(f"{self._endpoint.authority}: {answer.error or f'status {answer.status}'}")
            return
        found = self._parser.parse(answer.body)
        if not found:
            self._gap.open(f"{self._endpoint.authority}: the page has no metrics of {self._exporter.kind}-exporter")
            return
        self._gap.close()
        at_ns = time.monotonic_ns()
        for device, values in found.items():
            scaled = {name: value * self._exporter.scale.get(name, 1.0) for name, value in values.items()}
            self._emit(
                {
                    "row": "device",
                    "at_ns": at_ns,
                    "source": self._exporter.kind,
                    "host": self._endpoint.authority,
                    "device": device,
                    "values": scaled,
                }
            )
