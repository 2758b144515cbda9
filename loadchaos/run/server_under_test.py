"""Launch, monitor and stop the server under test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from loadchaos.analysis.state.machine import StateMachine
from loadchaos.chaos import authorization
from loadchaos.chaos.authorization import Leave
from loadchaos.chaos.network import LocalProxy
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import MetricsRow, StateRow
from loadchaos.core.model import Row
from loadchaos.core.redact import Redactor
from loadchaos.core.tls import TlsSettings
from loadchaos.profile.profile import Profile
from loadchaos.run.asker import HttpAsker
from loadchaos.run.held_server import HeldServer
from loadchaos.run.ports import ReservedPort
from loadchaos.server.dialects import DEFAULT_DIALECT, DIALECTS, SLOWEST_GAUGES_S, UNKNOWN, Dialect
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.monitor.base import MonitorOutput, ServerAccess
from loadchaos.server.monitor.device_exporters import DCGM, NODE
from loadchaos.server.monitor.log_follower import HEAD_BYTES
from loadchaos.server.monitor.monitor import Monitor, MonitoredReplica
from loadchaos.server.process.launcher import LaunchCommand, LaunchedServer, quoted_last_line, refuse_taken_port
from loadchaos.simulator.command import command as embedded_command
from loadchaos.simulator.options import DEFAULT_ERA, SimulatorSpec

_FORGOTTEN_NS = 2_000_000_000  # a correct server drops an aborted request in a tenth of this
_LONGEST_NS = _FORGOTTEN_NS + int(SLOWEST_GAUGES_S * 1e9)  # by then every gauge was updated
DOWN = frozenset({"dying", "dead", "restarting", "unreachable", "terminated"})


@dataclass(frozen=True)
class TargetSpec:
    """Address of a server and what the user says about it. `kind`: embedded, launched or external. `url`: None until
    the server has a port. `external_urls`: attacks on each need --authorize. `held`: launched server that several runs
    share; the run neither starts nor stops it.
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


class IdleWait(RowFold):
    """Reader of `metrics` rows that knows when a server has become idle."""

    def __init__(self) -> None:
        self._busy: dict[str, tuple[int, float]] = {}  # by engine: time of the gauges, requests

    def on_metrics(self, row: MetricsRow) -> None:
        if "requests_running" in (values := row.get("values") or {}):
            busy = values["requests_running"] + values.get("requests_waiting", 0)
            self._busy[f"{row['replica']} {row['engine']}"] = (row["at_ns"], busy)

    def idle_since(self, begin_ns: int) -> bool:
        """True when each engine was idle after `begin_ns`, or waiting is useless: no gauges, or all were updated since."""
        if not self._busy or time.monotonic_ns() - begin_ns >= _LONGEST_NS:
            return True
        newest = [busy for at_ns, busy in self._busy.values() if at_ns > begin_ns + _FORGOTTEN_NS]
        return len(newest) == len(self._busy) and not any(newest)


class ServerUnderTest:
    """Server under test, or the replicas of one. It owns process, monitor, proxy and state machines. `calm`: no load of
    ours needs its end within a tenth of a second.
    """

    def __init__(
        self, profile: Profile, target: TargetSpec, record: EventRecorder, redactor: Redactor, *, calm: bool = False
    ) -> None:
        self._profile, self.target, self._calm = profile, target, calm
        self._record, self._redactor = record, redactor
        self._log = record.folder.server_log
        self._replicas = profile.target.replicas if target.kind == "external" else ()
        self._monitor: Monitor | None = None
        self.launched: LaunchedServer | None = None
        self._given = None if target.pid is None else psutil.Process(target.pid)
        self.leave: Leave | None = None
        self.no_leave: str | None = None
        """Reason why the server, which came back, may not be harmed any more."""
        self.url = target.url or ""
        self._dialect = _assumed_dialect(profile)
        self._machines = self._new_machines()
        self._known_server = True
        self._idle = IdleWait()
        self._proxy: LocalProxy | None = None
        self.asker = HttpAsker.with_own_client(target.headers, target.tls.context())
        """Asks questions beside the load; they bypass our proxy."""
        self._reserved: ReservedPort | None = None

    async def launch(self) -> str:
        """Start or restart the server; returns a line that says which. Raises OptionError where its port is taken."""
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
        try:
            spec = SimulatorSpec(embedded.dialect, era, embedded.defects, embedded.flags)
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
            [(DCGM, url) for url in self._profile.watch.dcgm] + [(NODE, url) for url in self._profile.watch.node],
            calm=self._calm,
        )
        await self._monitor.start()
        if self.launched is not None:
            self._monitor.set_process("server", self.launched.pid)
            if self.target.held is None:
                self._monitor.watch_log("server", self._log)

    def _monitored_replicas(self) -> list[MonitoredReplica]:
        if self._replicas:
            return [
                MonitoredReplica(
                    r.name, parse_target(r.url), logs=[r.log] if r.log else [], pid=authorization.listener_pid(r.url)
                )
                for r in self._replicas
            ]
        pid = self.pid_of("server") if self.target.kind == "external" else None
        here = self.target.kind == "launched"
        url = self.target.admin_url or self.url
        logs = tuple(self.target.server_log)
        if self.target.held is not None:
            logs = (*logs, str(self.target.held.log))
        return [MonitoredReplica("server", url, logs=logs, pid=pid, here=here)]

    async def open_proxy(self) -> LocalProxy:
        self._proxy = LocalProxy(self.url)
        await self._proxy.open()
        return self._proxy

    @property
    def proxy_address(self) -> tuple[str, int] | None:
        """Address of the proxy for network attacks, where there is one."""
        return None if self._proxy is None else self._proxy.address

    async def read_log_head(self) -> str:
        """First 64 KiB of the server's log; empty without a log. They show version and flags."""
        if self.launched is not None:
            with contextlib.suppress(OSError), self._log.open("rb") as log:
                return log.read(HEAD_BYTES).decode("utf-8", "replace")
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

    def _new_machines(self, dialect: Dialect | None = None) -> dict[str, StateMachine]:
        health_knows_death = (dialect or self._dialect).health_knows_death
        names = [r.name for r in self._replicas] or ["server"]
        return {name: StateMachine(name, health_knows_death, sole=len(names) == 1) for name in names}

    def fold(self, row: Row) -> None:
        self._idle.fold(row)
        if self._monitor is not None and _may_mean_death(row):
            self._monitor.poll_logs()  # the log comes first: it says whether the server was told to end, or died
        self._record_changes([change for machine in self._machines.values() for change in machine.changes_after(row)])

    def tick(self) -> None:
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
            if change["to"] == "healthy" and change["from"] in DOWN and self.leave is not None:
                for url in (self.replicas[change["replica"]], self.url):  # the load goes to the second
                    self.no_leave = self.no_leave or self.leave.refusal(url)
            self._record.event(change)

    @property
    def state(self) -> str:
        """Best state of the replicas: load makes sense as long as one is up."""
        states = [machine.state for machine in self._machines.values()]
        return next((s for s in states if s not in DOWN), states[0])

    @property
    def down(self) -> bool:
        """True when no replica can answer. In an outage the load continues: only its requests show the end. So it does
        while only texts say that the server is dead, and a request was answered since or none has failed after another.
        """
        machines = self._machines.values()
        return self._lost and not any(m.said_dead and not m.requests_fail for m in machines)

    @property
    def said_dead(self) -> bool:
        """True while it is down and only texts of answers and log lines say so."""
        return self.down and any(machine.said_dead for machine in self._machines.values())

    @property
    def _lost(self) -> bool:
        return self.state in DOWN and not any(machine.outage for machine in self._machines.values())

    @property
    def dying(self) -> bool:
        return self._lost and self.exit_reason() is None

    def unsettled(self, since_ns: int) -> bool:
        return any(machine.unsettled(since_ns) for machine in self._machines.values())

    def idle_since(self, begin_ns: int) -> bool:
        return self._idle.idle_since(begin_ns)

    @property
    def replicas(self) -> dict[str, str]:
        found = {r.name: parse_target(r.url) for r in self._replicas}
        return found or {"server": self.target.admin_url or self.url}

    def pid_of(self, name: str) -> int | None:
        if self.target.kind != "external":
            return None if self.launched is None or self.launched.exit.done() else self.launched.pid
        if self._given is not None and self._given.is_running():  # its pid may be another process by now
            return self._given.pid
        return authorization.listener_pid(self.replicas[name])

    def exit_reason(self) -> str | None:
        """Reason of the launched server's exit, as the end of a sentence; None while it lives, and for an external one."""
        if (ended := self.exit_status()) is None or self.launched is None or self.launched.pid is None:
            return ended
        return f"{ended}{quoted_last_line(self._log)}; its log is {self._log}"

    def exit_status(self) -> str | None:
        return None if self.launched is None else self.launched.exit_reason

    @property
    def supervisor_lost(self) -> bool:
        """True when the server's supervisor process is gone. Without it neither log nor exit can be read."""
        return self.launched is not None and self.launched.lost


def _may_mean_death(row: Row) -> bool:
    kind, what = row.get("row"), row.get("what")
    return (kind == "process" and what == "gone") or (kind == "launch" and what == "exit") or row.get("ok") is False


def _assumed_dialect(profile: Profile) -> Dialect:
    if profile.target.dialect != "auto":
        return DIALECTS[profile.target.dialect]
    return DIALECTS[profile.target.embedded.dialect] if profile.target.embedded else DEFAULT_DIALECT
