"""All eyes on all replicas: starts and stops the parts, and is what `run` holds."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadchaos.core.errors import LoadchaosError
from loadchaos.core.ledger.rows import Emit
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect
from loadchaos.server.monitor.device_exporters import DeviceExporter, DeviceWatch
from loadchaos.server.monitor.health_probe import Probe
from loadchaos.server.monitor.http_get import place
from loadchaos.server.monitor.log_alarms import LogAlarms
from loadchaos.server.monitor.log_follower import LogFollower
from loadchaos.server.monitor.logs import read_spec
from loadchaos.server.monitor.logs.kernel import DEVICE
from loadchaos.server.monitor.orchestrators import Supervisor
from loadchaos.server.monitor.processes import ProcessWatch
from loadchaos.server.monitor.scraper import RawPageWriter, Scrape
from loadchaos.server.monitor.self_lag import EventLoopLag
from loadchaos.server.nvml import NvmlWatch

Part = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class MonitoredReplica:
    """One replica to watch. `url` is its root (no /v1); health and metrics may live elsewhere, as whole URLs.

    `logs` are specs as `--server-log` takes them, `pid` the root of its processes where they are on this machine;
    `here`: it runs on this machine, whether or not its processes are known yet.
    """

    name: str
    url: str
    health_url: str | None = None
    metrics_url: str | None = None
    logs: Sequence[str] = ()
    pid: int | None = None
    here: bool = False


class Monitor:
    """Watches until stopped; rows go to the two emits, on the loop's thread. Raw pages and logs go below `folder`.

    A part that fails by a mistake of ours is told as a gap and started again: one blind eye closes no other.
    """

    def __init__(
        self,
        targets: Sequence[MonitoredReplica],
        dialect: Dialect,
        emit_event: Emit,
        emit_metrics: Emit,
        folder: Path,
        redactor: Redactor,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        devices: Sequence[tuple[DeviceExporter, str]] = (),
    ) -> None:
        """OptionError for a log spec that cannot be read, ValueError for a URL that is none."""
        self._devices = [DeviceWatch(exporter, url, emit_metrics, emit_event, tls) for exporter, url in devices]
        self._targets, self._dialect = list(targets), dialect
        for target in targets:  # a mistake in an option is told before anything was started
            place(target.url)
            for spec in target.logs:
                read_spec(spec)
        self._emit, self._emit_metrics = emit_event, emit_metrics
        self._folder, self._redactor = folder, redactor
        self._headers, self._tls = dict(headers or {}), tls
        self._tasks: list[asyncio.Task[None]] = []
        self._probes: dict[str, Probe] = {}
        self._scrapes: dict[str, Scrape] = {}
        self._processes: dict[str, ProcessWatch] = {}
        self._followers: dict[str, list[LogFollower]] = {}
        self._ears: list[LogAlarms] = []
        self._nvml: NvmlWatch | None = None
        self._kernel: LogFollower | None = None

    async def start(self) -> None:
        """Open every eye; returns at once."""
        pages = RawPageWriter(self._folder, self._redactor)
        footing = EventLoopLag(self._emit)
        self._keep_running("", "watch", footing.run)
        for device in self._devices:
            self._keep_running("", "device", device.run)
        if any(t.here or t.pid is not None for t in self._targets):
            self._nvml = NvmlWatch(self._emit_metrics)
            self._nvml.start()
            logs = self._folder / "watch" / "logs"
            self._kernel = LogFollower(f"kmsg:{DEVICE}", "", "kernel", logs, self._emit, self._redactor, "kernel")
            self._kernel.start()
        for target in self._targets:
            self._start_one(target, pages)

    def _start_one(self, target: MonitoredReplica, pages: RawPageWriter) -> None:
        base = target.url.rstrip("/")
        health = place(target.health_url or base + self._dialect.health_path, self._tls)
        probe = Probe(target.name, health, self._emit, self._redactor, self._headers, self._dialect.health_ok)
        self._probes[target.name] = probe
        self._keep_running(target.name, "probe", probe.run)
        metrics_url = target.metrics_url or (base + self._dialect.metrics_path if self._dialect.metrics_path else None)
        if metrics_url:
            scrape = Scrape(
                target.name,
                place(metrics_url, self._tls),
                self._dialect.metrics,
                self._emit_metrics,
                self._emit,
                pages,
                self._headers,
                absent=lambda: probe.absent,
            )
            self._scrapes[target.name] = scrape
            self._keep_running(target.name, "scrape", scrape.run)
        processes = ProcessWatch(target.name, self._dialect.process_roles, self._emit, self._redactor)
        processes.set_pid(target.pid)
        self._processes[target.name] = processes
        self._keep_running(target.name, "process", processes.run)
        for n, spec in enumerate(target.logs, 1):
            label = re.sub(r"[^\w-]+", "_", target.name) + ("" if n == 1 else f"-{n}")
            folder = self._folder / "watch" / "logs"
            follower = LogFollower(spec, target.name, label, folder, self._emit, self._redactor)
            self._followers.setdefault(target.name, []).append(follower)
            self.listen(target.name, follower.path)
            follower.start()
            supervisor = Supervisor(target.name, spec, self._emit)
            if supervisor.exists:
                self._keep_running(target.name, "supervisor", supervisor.run)

    def _keep_running(self, replica: str, source: str, part: Part) -> None:
        self._tasks.append(asyncio.create_task(self._guard(replica, source, part)))

    async def _guard(self, replica: str, source: str, part: Part) -> None:
        while True:
            try:
                await part()
            except LoadchaosError:
                raise  # the ledger takes no more rows: whoever owns it knows, and nothing can be told here
            except Exception as e:  # noqa: BLE001 - a mistake of ours must not close the other eyes; it is told as a gap
                self._emit(
                    {
                        "row": "gap",
                        "at_ns": time.monotonic_ns(),
                        "replica": replica,
                        "source": source,
                        "seconds": 1.0,
                        "why": f"watching failed and is started again: {type(e).__name__}: {e}",
                    }
                )
                await asyncio.sleep(1.0)

    def set_process(self, replica: str, pid: int | None) -> None:
        """This replica's processes are this pid and what it starts, from now on."""
        self._processes[replica].set_pid(pid)

    def listen(self, replica: str, log: Path) -> None:
        """This file of the run folder is (one of) its logs: `hear` looks into it, too."""
        self._ears.append(LogAlarms(log, replica, self._emit))
        self._ears[-1].look()

    def hear(self) -> None:
        """Look at once for what the logs say of an end; done before a sign of death is weighed."""
        for ears in self._ears:
            ears.look()

    async def snapshot(self, why: str) -> None:
        """Keep the newest metrics page of every replica (at an incident)."""
        for scrape in self._scrapes.values():
            await scrape.keep(why)

    async def read_head(self, replica: str) -> str:
        """The first 64 kB of this replica's logs, redacted: version and flags stand there."""
        return "".join([await follower.head() for follower in self._followers.get(replica, ())])

    async def wait_healthy(self, replica: str, limit_s: float) -> bool:
        """Wait until its /health is good; False when it was not within the limit."""
        try:
            async with asyncio.timeout(limit_s):
                await self._probes[replica].healthy.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Close every eye; the logs are read to their present end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for ears in self._ears:
            ears.close()
        if self._nvml is not None:
            await self._nvml.stop()
        followers = [follower for many in self._followers.values() for follower in many]
        followers += [self._kernel] if self._kernel is not None else []
        await asyncio.gather(*(follower.stop() for follower in followers))
