"""Monitor a server: health, metrics, logs, processes, machines, canary. To add a part, start its coroutine in
`Monitor._start_replica`; to add a place where a log can be, see `logs.SOURCES`.
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
