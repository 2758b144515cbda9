"""Watching the server as a doctor watches a patient: probe, scrape, logs, processes, supervisors, machines, a canary.

    watch = Watch(targets, dialect, emit_event, emit_metrics, folder, redactor, headers)
    await watch.start() ... await watch.stop()

Rows of kind probe, process, gap go to `emit_event`, rows of kind metrics and page to `emit_metrics`.
"""

from __future__ import annotations

from loadchaos.server.monitor.canary import Canary
from loadchaos.server.monitor.device_exporters import DCGM, NODE, DeviceExporter
from loadchaos.server.monitor.monitor import Monitor, MonitoredReplica

__all__ = ["DCGM", "NODE", "Canary", "DeviceExporter", "Monitor", "MonitoredReplica"]
