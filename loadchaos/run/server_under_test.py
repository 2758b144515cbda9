"""Launch, monitor and stop the server under test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loadchaos.analysis.state.machine import StateMachine
from loadchaos.chaos import authorization
from loadchaos.chaos.network import LocalProxy
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.rows import StateRow
from loadchaos.core.model import Facts, Row
from loadchaos.core.redact import Redactor
from loadchaos.core.tls import TlsSettings
from loadchaos.profile.profile import Profile
from loadchaos.run.asker import HttpAsker
from loadchaos.run.held_server import HeldServer
from loadchaos.run.ports import ReservedPort
from loadchaos.run.wait_idle import IdleWait
from loadchaos.server.dialects import DEFAULT_DIALECT, DIALECTS, UNKNOWN, Dialect
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.monitor import (
    DCGM,
    NODE,
    Canary,
    DeviceExporter,
    Monitor,
    MonitoredReplica,
    MonitorOutput,
    ServerAccess,
)
from loadchaos.server.process.launcher import LaunchCommand, LaunchedServer, last_line, refuse_taken_port
from loadchaos.simulator.command import command as embedded_command
from loadchaos.simulator.options import DEFAULT_ERA, SimulatorSpec

_HEAD_BYTES = 1 << 16
DOWN = frozenset({"dying", "dead", "restarting", "unreachable", "terminated"})


@dataclass(frozen=True)
class TargetSpec:
    """Address of a server and what the user says about it.

    Args:
        kind: embedded, launched or external.
        url: where requests go; None until an embedded or launched server has a port.
        admin_url: where /health, /metrics and admin endpoints are, if elsewhere.
        server_log: log sources as given with --server-log.
        headers: request headers with their values.
        tls: certificates to trust.
        pid: root process, as given with --pid.
        external_urls: URLs of servers that the run does not start; attacks on each need --authorize.
        held: launched server that several runs share; the run neither starts nor stops it.
    """

    kind: str
    url: str | None
    admin_url: str | None
    server_log: Sequence[str]
    headers: Mapping[str, str]
    tls: TlsSettings = field(default_factory=TlsSettings)
    pid: int | None = None
    external_urls: Sequence[str] = ()
    held: HeldServer | None = None


class ServerUnderTest:
    """Server under test, or the replicas of one. It owns process, monitor, canary, proxy and state machines."""

    def __init__(self, profile: Profile, target: TargetSpec, record: EventRecorder, redactor: Redactor) -> None:
        self._profile, self.target = profile, target
        self._record, self._redactor = record, redactor
        self._log = record.folder.server_log
        self._monitor: Monitor | None = None
        self._canary: Canary | None = None
        self.launched: LaunchedServer | None = None
        self.url = target.url or ""
        self._dialect = _assumed_dialect(profile)
        self._machines = self._new_machines()
        self._known_server = True
        self._idle = IdleWait()
        self._proxy: LocalProxy | None = None
        self.asker = HttpAsker.with_own_client(target.headers, target.tls.context())
        """Asks questions beside the load; they bypass our proxy."""
        self._reserved: ReservedPort | None = None

    # --- start and end --------------------------------------------------------------------------------------------------

    async def launch(self) -> str:
        """Start or restart the embedded server or the launch command.

        Returns a line that says which.

        OptionError when another server has its port.
        """
        if self.launched is not None:  # server.log has one writer at a time
            why = "it hung" if self.state == "hung" else "its engine was dead and the server did not exit"
            await (self.launched.wait_recorded() if self.launched.exit.done() else self.launched.kill(why))
        if self.target.held is not None:
            return self._attach(self.target.held)
        if self.target.kind == "embedded":
            command, description = self._embedded()
        else:
            launch = self._profile.target.launch
            assert launch is not None
            self.url = parse_target(launch.url)
            refuse_taken_port(self.url)
            limits = launch.limits.model_dump(exclude_none=True)
            command = LaunchCommand(launch.command, launch.env, "server", secrets=self._secrets(), limits=limits)
            description = f"starting {launch.command[0]} at {self.url}"
        shown = self._redactor.argv(list(command.argv))
        self.launched = LaunchedServer(command, self._record.folder.path, self._record.event, shown)
        await self.launched.start()
        if self._monitor is not None:
            self._monitor.set_process("server", self.launched.pid)
        return description

    def _attach(self, held: HeldServer) -> str:
        """Use the held server; its rows go to this run from now on."""
        self.url, self.launched, self._log = held.url, held.launched, held.log
        held.attach(self._record.event)
        if self._monitor is not None:
            self._monitor.set_process("server", held.launched.pid)
        return f"using the server at {held.url}, which was started before"

    def _embedded(self) -> tuple[LaunchCommand, str]:
        embedded = self._profile.target.embedded
        assert embedded is not None
        if self._reserved is None:
            self._reserved = ReservedPort()
        self.url = f"http://127.0.0.1:{self._reserved.port}"
        era = embedded.era or DEFAULT_ERA[embedded.dialect]
        flags = dict(embedded.flags)
        images, dev_mode = flags.pop("images", True), flags.pop("dev_mode", True)
        try:
            spec = SimulatorSpec(
                embedded.dialect, era, embedded.defects, flags, images=bool(images), dev_mode=bool(dev_mode)
            )
            argv = [*embedded_command(spec, self._reserved.port), "--reserved-port"]
        except ValueError as e:
            raise OptionError(f"target.embedded: {e}") from e
        defects = f"planted defects: {', '.join(embedded.defects)}" if embedded.defects else "no planted defects"
        description = f"starting the EMBEDDED SERVER (simulates {embedded.dialect} {era}) at {self.url}; {defects}"
        return LaunchCommand(argv, {}, "server", secrets=self._secrets()), description

    def _secrets(self) -> list[str]:
        """Values of request headers, with and without `Bearer`. A server may log them."""
        return [part for value in self.target.headers.values() for part in dict.fromkeys((value, value.split(" ")[-1]))]

    def identified(self, dialect: Dialect, *, own_pages: bool) -> None:
        """Note what was found; `own_pages`: pages that no gateway would answer."""
        self._known_server = dialect.name != UNKNOWN.name and own_pages
        self.asker.dialect = dialect
        self._set_known()

    def _set_known(self) -> None:
        for machine in self._machines.values():
            machine.known_server = self._known_server

    async def start_monitor(self, dialect: Dialect | None = None) -> None:
        """Start the monitor, or restart it for another dialect."""
        if dialect is not None:
            if self._monitor is not None and dialect == self._dialect:
                return
            if dialect.health_knows_death != self._dialect.health_knows_death:
                new = self._new_machines(dialect)
                # A healthy server was not misread. Another machine for it would record its start again.
                self._machines = {n: m if m.state == "healthy" else new[n] for n, m in self._machines.items()}
                for machine in self._machines.values():
                    machine.knows_death = dialect.health_knows_death
            self._dialect = dialect
            self._set_known()
        if self._monitor is not None:
            await self._monitor.stop()
        self._monitor = Monitor(
            self._monitored_replicas(),
            self._dialect,
            MonitorOutput(self._record.event, self._record.metric, self._record.folder.path, self._redactor),
            ServerAccess(self.target.headers, self.target.tls.context()),
            self._device_exporters(),
        )
        await self._monitor.start()
        if self.launched is not None:
            self._monitor.set_process("server", self.launched.pid)
            if self.target.held is None:
                self._monitor.watch_log("server", self._log)

    def _device_exporters(self) -> list[tuple[DeviceExporter, str]]:
        watch = self._profile.watch
        return [(DCGM, url) for url in watch.dcgm] + [(NODE, url) for url in watch.node]

    async def learn_canary(self, facts: Facts) -> None:
        """Record the canary's answers on the idle server."""
        canary = self._profile.watch.canary
        if canary is not None:
            self._canary = Canary(
                self.asker, self.url, facts.model, self._record.event, self._redactor, every_s=canary.every
            )
            await self._canary.learn()

    def start_canary(self) -> None:
        """Send canary requests beside the load, except while the server is down."""
        if self._canary is not None:
            self._canary.start(lambda: self.down)

    async def stop_canary(self) -> None:
        """Send no more canary requests. After the load the server has to become idle."""
        if self._canary is not None:
            await self._canary.stop()

    def _monitored_replicas(self) -> list[MonitoredReplica]:
        if self._profile.target.replicas and self.target.kind == "external":
            return [
                MonitoredReplica(
                    r.name, parse_target(r.url), logs=[r.log] if r.log else [], pid=authorization.listener_pid(r.url)
                )
                for r in self._profile.target.replicas
            ]
        pid = self.pid_of("server") if self.target.kind == "external" else None
        here = self.target.kind == "launched"
        url = self.target.admin_url or self.url
        logs = tuple(self.target.server_log)
        if self.target.held is not None:
            logs = (*logs, str(self.target.held.log))
        return [MonitoredReplica("server", url, logs=logs, pid=pid, here=here)]

    async def open_proxy(self) -> LocalProxy:
        """Open a proxy between clients and server; `stop` closes it."""
        self._proxy = LocalProxy(self.url)
        await self._proxy.open()
        return self._proxy

    async def read_log_head(self) -> str:
        """First 64 KiB of the server's log; empty without a log. They show version and flags."""
        if self.launched is not None:
            with contextlib.suppress(OSError), self._log.open("rb") as log:
                return log.read(_HEAD_BYTES).decode("utf-8", "replace")
        if self._monitor is None:
            return ""
        return "".join([await self._monitor.read_head(name) for name in self._machines])

    async def stop(self, *, grace_s: float) -> None:
        """Stop the monitor, then the server that we started. An exit that we cause is no death."""
        await self.asker.http.aclose()
        if self._proxy is not None:
            await self._proxy.close()
            self._proxy = None
        if self._monitor is not None:
            await self._monitor.stop()
            self._monitor = None
        if self.target.held is not None:
            self.target.held.detach()
        elif self.launched is not None:
            await (self.launched.stop(grace_s) if grace_s else self.launched.kill())
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    # --- its state --------------------------------------------------------------------------------------------------------

    def _new_machines(self, dialect: Dialect | None = None) -> dict[str, StateMachine]:
        health_knows_death = (dialect or self._dialect).health_knows_death
        replicas = self._profile.target.replicas if self.target.kind == "external" else ()
        names = [r.name for r in replicas] or ["server"]
        launched = self.target.kind != "external"
        return {name: StateMachine(name, launched, health_knows_death, sole=len(names) == 1) for name in names}

    def feed(self, row: Row) -> None:
        """Fold one ledger row and record the state changes that follow."""
        self._idle.feed(row)
        if self._monitor is not None and _may_mean_death(row):
            self._monitor.poll_logs()  # the log comes first: it says whether the server was told to end, or died
        self._record_changes([change for machine in self._machines.values() for change in machine.feed(row)])

    def tick(self) -> None:
        """Let time pass without a row and record the state changes that follow."""
        if self._monitor is not None:
            self._monitor.poll_logs()
        now_ns = time.monotonic_ns()
        self._record_changes([change for machine in self._machines.values() for change in machine.tick(now_ns)])

    def _record_changes(self, changes: Sequence[StateRow]) -> None:
        for change in changes:
            recovered = change["from"] == "restarting" and change["to"] == "healthy"
            if recovered and self._monitor is not None and self.target.kind == "external":
                # An external server that came back is a new process: monitor that one.
                self._monitor.set_process(change["replica"], self.pid_of(change["replica"]))
            self._record.event(change)

    @property
    def state(self) -> str:
        """Best state of the replicas: load makes sense as long as one is up."""
        states = [machine.state for machine in self._machines.values()]
        return next((s for s in states if s not in DOWN), states[0])

    @property
    def down(self) -> bool:
        """True when no replica can answer.

        In an outage the load continues: only its requests show the end of the outage.
        """
        return self.state in DOWN and not any(machine.outage for machine in self._machines.values())

    @property
    def dying(self) -> bool:
        """True when the server is down and its process has not exited."""
        return self.down and self.exit_reason() is None

    def unsettled(self, since_ns: int) -> bool:
        """True while a restart before `since_ns` may still show."""
        return any(machine.unsettled(since_ns) for machine in self._machines.values())

    def idle_since(self, begin_ns: int) -> bool:
        """True when the gauges show no requests after `begin_ns`. Also true where waiting is useless."""
        return self._idle.idle_since(begin_ns)

    @property
    def replicas(self) -> dict[str, str]:
        """URLs of the replicas by name, for attacks on each."""
        if self._profile.target.replicas and self.target.kind == "external":
            return {r.name: parse_target(r.url) for r in self._profile.target.replicas}
        return {"server": self.target.admin_url or self.url}

    def pid_of(self, name: str) -> int | None:
        """Root process of a replica now; None if unknown or exited."""
        if self.target.kind != "external":
            return None if self.launched is None or self.launched.exit.done() else self.launched.pid
        if self.target.pid is not None and psutil.pid_exists(self.target.pid):
            return self.target.pid
        return authorization.listener_pid(self.replicas[name])

    def exit_reason(self) -> str | None:
        """Exit reason of the launched server; None while it lives.

        It is the end of a sentence. An external server has none.
        """
        if (ended := self.exit_status()) is None or self.launched is None or self.launched.pid is None:
            return ended
        return f"{ended}{_last_line(self._log)}; its log is {self._log}"

    def exit_status(self) -> str | None:
        """Exit code or signal of the launched server; None while it lives."""
        if self.launched is None or not self.launched.exit.done():
            return None
        return f"it {self.launched.exit.result().reason}"

    @property
    def supervisor_lost(self) -> bool:
        """True when the server's supervisor process is gone.

        Without it neither log nor exit can be read.
        """
        return self.launched is not None and self.launched.lost


def _may_mean_death(row: Row) -> bool:
    """True for a row that may be a sign of death."""
    kind, what = row.get("row"), row.get("what")
    return (kind == "process" and what == "gone") or (kind == "launch" and what == "exit") or row.get("ok") is False


def _last_line(log: Path) -> str:
    """The last line of a server's log, as part of a sentence."""
    line = last_line(log)
    return f"; its last log line is {line!r}" if line else " without a log line"


def _assumed_dialect(profile: Profile) -> Dialect:
    """Dialect to monitor with until the server is identified."""
    if profile.target.dialect != "auto":
        return DIALECTS[profile.target.dialect]
    return DIALECTS[profile.target.embedded.dialect] if profile.target.embedded else DEFAULT_DIALECT
