"""Start and stop all parts of the monitor, for all replicas."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadchaos.core.errors import LoadchaosError
from loadchaos.server.dialects import Dialect
from loadchaos.server.dialects.gateways import HEALTH_PATH
from loadchaos.server.monitor.base import MonitorOutput, ServerAccess
from loadchaos.server.monitor.device_exporters import DeviceExporter, DeviceScraper
from loadchaos.server.monitor.gaps import CoverageGap, watch_lag
from loadchaos.server.monitor.health_probe import HealthProbe
from loadchaos.server.monitor.host import watch_host
from loadchaos.server.monitor.http_get import parse_endpoint
from loadchaos.server.monitor.log_alarms import LogAlarms
from loadchaos.server.monitor.log_follower import FollowedLog, LogFollower
from loadchaos.server.monitor.logs import read_spec
from loadchaos.server.monitor.logs.base import POLL_S as LOG_POLL_S
from loadchaos.server.monitor.logs.kernel import DEVICE
from loadchaos.server.monitor.orchestrators import OrchestratorMonitor, status_command
from loadchaos.server.monitor.processes import POLL_S, ProcessMonitor
from loadchaos.server.monitor.scraper import RawPageWriter, Scraper
from loadchaos.server.nvml import NvmlMonitor

Part = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class _Pace:
    """Periods at which a log is read and the states of processes are looked at."""

    log_s: float = LOG_POLL_S
    processes_s: float = POLL_S


_USUAL, _CALM = _Pace(), _Pace(log_s=0.25, processes_s=2.0)


@dataclass(frozen=True)
class MonitoredReplica:
    """One replica. `url`: root, without /v1; `pid`: root of its processes, if on this machine; `here`: it runs on this
    machine.
    """

    name: str
    url: str
    logs: Sequence[str] = ()
    pid: int | None = None
    here: bool = False


class Monitor:
    """Monitors replicas until stopped, on the loop's thread. A part that fails by a bug of ours writes a gap and starts
    again.
    """

    def __init__(
        self,
        replicas: Sequence[MonitoredReplica],
        dialect: Dialect,
        output: MonitorOutput,
        access: ServerAccess,
        devices: Sequence[tuple[DeviceExporter, str]] = (),
        *,
        calm: bool = False,
    ) -> None:
        """Check all options; `calm`: look at a healthy server less often. Raises OptionError for a log that cannot be
        understood, ValueError for a wrong URL.
        """
        self._devices = [
            DeviceScraper(exporter, url, output.emit_metrics, output.emit_event, access.tls)
            for exporter, url in devices
        ]
        self._replicas, self._dialect, self._output, self._access = list(replicas), dialect, output, access
        for replica in replicas:
            parse_endpoint(replica.url)
            for spec in replica.logs:
                read_spec(spec)
        self._pace = _CALM if calm else _USUAL
        self._tasks: list[asyncio.Task[None]] = []
        self._processes: dict[str, ProcessMonitor] = {}
        self._followers: dict[str, list[LogFollower]] = {}
        self._alarms: list[LogAlarms] = []
        self._nvml: NvmlMonitor | None = None
        self._kernel: LogFollower | None = None

    def _server_pids(self) -> list[int | None]:
        return [processes.pid for processes in self._processes.values()]

    async def start(self) -> None:
        output = self._output
        pages = RawPageWriter(output.folder, output.redactor)
        self._keep_running("", "watch", partial(watch_lag, output.emit_event))
        self._keep_running("", "host", partial(watch_host, output.emit_event, self._server_pids))
        for device in self._devices:
            self._keep_running("", "device", device.run)
        if any(r.here or r.pid is not None for r in self._replicas):
            self._nvml = NvmlMonitor(output.emit_metrics)
            self._nvml.start()
            self._kernel = self._follow(FollowedLog(f"kmsg:{DEVICE}", "", "kernel", "kernel"))
        for replica in self._replicas:
            self._start_replica(replica, pages)

    def _start_replica(self, replica: MonitoredReplica, pages: RawPageWriter) -> None:
        emit, redactor = self._output.emit_event, self._output.redactor
        base = replica.url.rstrip("/")
        health = parse_endpoint(base + HEALTH_PATH, self._access.tls, self._access.headers)
        probe = HealthProbe(replica.name, health, emit, redactor, calm=self._pace is _CALM)
        self._keep_running(replica.name, "probe", probe.run)
        if self._dialect.metrics_path:
            endpoint = parse_endpoint(base + self._dialect.metrics_path, self._access.tls, self._access.headers)
            names, reason = self._dialect.metrics, lambda: probe.skip_reason
            scraper = Scraper(replica.name, endpoint, names, self._output, pages, reason)
            self._keep_running(replica.name, "scrape", scraper.run)
        processes = ProcessMonitor(replica.name, self._dialect.process_roles, emit, redactor, self._pace.processes_s)
        processes.set_pid(replica.pid)
        self._processes[replica.name] = processes
        self._keep_running(replica.name, "process", processes.run)
        for n, spec in enumerate(replica.logs, 1):
            label = re.sub(r"[^\w-]+", "_", replica.name) + ("" if n == 1 else f"-{n}")
            follower = self._follow(FollowedLog(spec, replica.name, label, every_s=self._pace.log_s))
            self._followers.setdefault(replica.name, []).append(follower)
            self.watch_log(replica.name, follower.path)
            if (command := status_command(spec)) is not None:
                polled = OrchestratorMonitor(replica.name, spec, command, emit)
                self._keep_running(replica.name, "supervisor", polled.run)

    def _follow(self, log: FollowedLog) -> LogFollower:
        follower = LogFollower(log, self._output.log_folder, self._output.emit_event, self._output.redactor)
        follower.start()
        return follower

    def _keep_running(self, replica: str, source: str, part: Part) -> None:
        self._tasks.append(asyncio.create_task(self._guard(replica, source, part)))

    async def _guard(self, replica: str, source: str, part: Part) -> None:
        while True:
            try:
                await part()
            except LoadchaosError:
                raise  # the ledger cannot be written: its owner knows, and no row can be written here
            except Exception as e:  # noqa: BLE001 - a bug in one part must not stop the others; it is written as a gap
                why = f"the monitor failed and starts again: {type(e).__name__}: {e}"
                CoverageGap(self._output.emit_event, replica, source).report(1.0, why)
                await asyncio.sleep(1.0)

    def set_process(self, replica: str, pid: int | None) -> None:
        self._processes[replica].set_pid(pid)

    def watch_log(self, replica: str, log: Path) -> None:
        """Add a log file of the run folder to those that `poll_logs` scans."""
        self._alarms.append(LogAlarms(log, replica, self._output.emit_event))
        self._alarms[-1].poll()

    def poll_logs(self) -> None:
        """Scan the logs for shutdown and death texts now. Called before a sign of death is judged."""
        for alarms in self._alarms:
            alarms.poll()

    async def read_head(self, replica: str) -> str:
        """Return the first 64 kB of this replica's logs, redacted. They hold version and flags."""
        return "".join([await follower.head() for follower in self._followers.get(replica, ())])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for alarms in self._alarms:
            alarms.close()
        if self._nvml is not None:
            await self._nvml.stop()
        followers = [follower for many in self._followers.values() for follower in many]
        followers += [self._kernel] if self._kernel is not None else []
        await asyncio.gather(*(follower.stop() for follower in followers))
