"""Monitor a server: health, metrics, logs, processes, machines, canary.

Main type: `Monitor`, which starts and stops all parts.

    monitor = Monitor(replicas, dialect, MonitorOutput(emit_event, emit_metrics, folder, redactor), ServerAccess(headers))
    await monitor.start() ... await monitor.stop()

To add a part, write a class with an async `run()` and start it in `Monitor._start_replica`. To add a place where a log
can be, add it to `logs/` (see `logs.SOURCES`).
"""

from __future__ import annotations

from loadchaos.server.monitor.base import MonitorOutput, ServerAccess
from loadchaos.server.monitor.canary import Canary
from loadchaos.server.monitor.device_exporters import DCGM, NODE, DeviceExporter
from loadchaos.server.monitor.monitor import Monitor, MonitoredReplica

__all__ = [
    "DCGM",
    "NODE",
    "Canary",
    "DeviceExporter",
    "Monitor",
    "MonitorOutput",
    "MonitoredReplica",
    "ServerAccess",
]
