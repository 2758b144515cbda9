"""The server under test as a run holds it: started where we start it, watched, and its state followed row by row."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loadchaos.analysis.state.machine import StateMachine
from loadchaos.chaos import LocalProxy, RunProxy, ToxiproxyProxy, authorization
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.rows import StateRow
from loadchaos.core.model import Facts, Row
from loadchaos.core.redact import Redactor
from loadchaos.core.tls import TlsSettings
from loadchaos.profile.profile import Profile
from loadchaos.server.dialects import DEFAULT_DIALECT, DIALECTS, Dialect
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.monitor import DCGM, NODE, Canary, DeviceExporter, Monitor, MonitoredReplica
from loadchaos.server.process.launcher import Command, Launched, last_line, refuse_taken_port
from loadchaos.simulator.command import command as embedded_command

_HEAD_BYTES = 1 << 16
DOWN = frozenset({"dying", "dead", "restarting", "unreachable", "terminated"})
_DEFAULT_ERA = {"vllm": "0.18", "lmdeploy": "0.18"}


@dataclass(frozen=True)
class TargetSpec:
    """Where the server is and what is known by hand: URLs, logs, headers, certificates; embedded, launched or external.

    `pid` is its process as the user gave it, `toxiproxy` the API of one that is to stand in the path of network attacks,
    `strangers` are the URLs of all that is no server of ours: none may be harmed without the user's word.
    """

    kind: str
    url: str | None
    admin_url: str | None
    server_log: Sequence[str]
    headers: Mapping[str, str]
    trust: TlsSettings = field(default_factory=TlsSettings)
    pid: int | None = None
    toxiproxy: str | None = None
    strangers: Sequence[str] = ()


class ServerUnderTest:
    """One server (or the replicas of one): launch, watch, state machines. Rows go through `record`."""

    def __init__(self, profile: Profile, place: TargetSpec, folder: Path, redactor: Redactor) -> None:
        self._profile, self.place = profile, place
        self._folder, self._redactor = folder, redactor
        self._watch: Monitor | None = None
        self._canary: Canary | None = None
        self.launched: Launched | None = None
        self.url = place.url or ""
        self._dialect = _guess(profile)
        self._machines = self._new_machines()
        self._path: RunProxy | None = None

    # --- start and end --------------------------------------------------------------------------------------------------

    async def launch(self, record: EventRecorder) -> str:
        """Start the embedded server or the profile's command (again, too); says in words what was started.

        OptionError when its port is served by somebody else.
        """
        if self.launched is not None:  # server.log has one writer at a time
            why = "it hung" if self.state == "hung" else "its engine was dead, and it did not end"
            await (self.launched.over() if self.launched.exit.done() else self.launched.kill(why))
        if self.place.kind == "embedded":
            command, words = self._embedded()
        else:
            launch = self._profile.target.launch
            assert launch is not None
            self.url = parse_target(launch.url)
            refuse_taken_port(self.url)
            limits = launch.limits.model_dump(exclude_none=True)
            command = Command(launch.command, launch.env, "server", secrets=self._secrets(), limits=limits)
            words = f"starting {launch.command[0]} for {self.url}"
        shown = self._redactor.argv(list(command.argv))
        self.launched = Launched(command, self._folder, record.event, shown)
        await self.launched.start()
        if self._watch is not None:
            self._watch.set_process("server", self.launched.pid)
        return words

    def _embedded(self) -> tuple[Command, str]:
        embedded = self._profile.target.embedded
        assert embedded is not None
        port = int(self.url.rsplit(":", 1)[1]) if self.url else free_port()
        self.url = f"http://127.0.0.1:{port}"
        era = embedded.era or _DEFAULT_ERA[embedded.dialect]
        flags = dict(embedded.flags)
        images, dev_mode = flags.pop("images", True), flags.pop("dev_mode", True)
        try:
            argv = embedded_command(
                dialect=embedded.dialect,
                era=era,
                defects=list(embedded.defects),
                flags=flags,
                port=port,
                images=bool(images),
                dev_mode=bool(dev_mode),
            )
        except ValueError as e:
            raise OptionError(f"target.embedded: {e}") from e
        planted = f"planted: {', '.join(embedded.defects)}" if embedded.defects else "nothing planted"
        words = f"EMBEDDED SERVER: a model of {embedded.dialect} {era} at {self.url}, not a real one; {planted}"
        return Command(argv, {}, "server", secrets=self._secrets()), words

    def _secrets(self) -> list[str]:
        """Values of our headers, with and without `Bearer`: a server may log what it was sent."""
        return [part for value in self.place.headers.values() for part in dict.fromkeys((value, value.split(" ")[-1]))]

    async def watch(self, record: EventRecorder, dialect: Dialect | None = None) -> None:
        """Open the eyes; called again when the server turned out to speak another dialect than was guessed."""
        if dialect is not None:
            if self._watch is not None and dialect == self._dialect:
                return
            if dialect.health_knows_death != self._dialect.health_knows_death:
                self._machines = self._new_machines(dialect)
            self._dialect = dialect
        if self._watch is not None:
            await self._watch.stop()
        self._watch = Monitor(
            self._targets(),
            self._dialect,
            record.event,
            record.metric,
            self._folder,
            self._redactor,
            headers=self.place.headers,
            tls=self.place.trust.context(),
            devices=self._devices(),
        )
        await self._watch.start()
        if self.launched is not None:
            self._watch.set_process("server", self.launched.pid)
            self._watch.listen("server", self._folder / "server.log")

    def _devices(self) -> list[tuple[DeviceExporter, str]]:
        watch = self._profile.watch
        return [(DCGM, url) for url in watch.dcgm] + [(NODE, url) for url in watch.node]

    async def learn(self, record: EventRecorder, facts: Facts) -> None:
        """Where the profile wants a canary: hear what it is answered while nobody else asks. It passes no proxy of ours."""
        wanted = self._profile.watch.canary
        if wanted is not None:
            self._canary = Canary(
                self.url,
                facts.model,
                record.event,
                self._redactor,
                every_s=wanted.every,
                headers=self.place.headers,
                tls=self.place.trust.context(),
            )
            await self._canary.learn()

    def ask_on(self) -> None:
        """The load begins: the canary asks beside it, but nobody who is down."""
        if self._canary is not None:
            self._canary.start(lambda: self.down)

    async def ask_no_more(self) -> None:
        """The load is over, or nearly so: a server at rest has no canary either."""
        if self._canary is not None:
            await self._canary.stop()

    def _targets(self) -> list[MonitoredReplica]:
        if self._profile.target.replicas and self.place.kind == "external":
            return [
                MonitoredReplica(
                    r.name, parse_target(r.url), logs=[r.log] if r.log else [], pid=authorization.listener_pid(r.url)
                )
                for r in self._profile.target.replicas
            ]
        pid = self.pid_of("server") if self.place.kind == "external" else None
        here = self.place.kind == "launched"
        url = self.place.admin_url or self.url
        return [MonitoredReplica("server", url, logs=tuple(self.place.server_log), pid=pid, here=here)]

    async def lay_path(self) -> RunProxy:
        """Put a proxy between the clients and the server, ours or in somebody's toxiproxy; it ends with the watch."""
        api = self.place.toxiproxy
        self._path = LocalProxy(self.url) if api is None else ToxiproxyProxy(api, self.url)
        await self._path.open()
        return self._path

    async def read_head(self) -> str:
        """The head of the server's log, where there is one: version and flags stand there."""
        if self.launched is not None:
            with contextlib.suppress(OSError), (self._folder / "server.log").open("rb") as log:
                return log.read(_HEAD_BYTES).decode("utf-8", "replace")
        if self._watch is None:
            return ""
        return "".join([await self._watch.read_head(name) for name in self._machines])

    async def stop(self, *, grace_s: float) -> None:
        """Close the eyes, then end what we started: that end is ours, and nobody should see a death in it."""
        if self._path is not None:
            await self._path.close()
            self._path = None
        if self._watch is not None:
            await self._watch.stop()
            self._watch = None
        if self.launched is not None:
            await (self.launched.stop(grace_s) if grace_s else self.launched.kill())

    # --- its state --------------------------------------------------------------------------------------------------------

    def _new_machines(self, dialect: Dialect | None = None) -> dict[str, StateMachine]:
        knows = (dialect or self._dialect).health_knows_death
        replicas = self._profile.target.replicas if self.place.kind == "external" else ()
        names = [r.name for r in replicas] or ["server"]
        launched = self.place.kind != "external"
        return {name: StateMachine(name, launched, knows, sole=len(names) == 1) for name in names}

    def feed(self, row: Row) -> list[StateRow]:
        """Fold one row of the ledger; the state rows it gives are the caller's to write."""
        if self._watch is not None and _speaks_of_an_end(row):
            self._watch.hear()  # what the log says of it comes first: told to end, or dead
        return self._told([change for machine in self._machines.values() for change in machine.feed(row)])

    def tick(self) -> list[StateRow]:
        """Let time pass without a row."""
        if self._watch is not None:
            self._watch.hear()
        now_ns = time.monotonic_ns()
        return self._told([change for machine in self._machines.values() for change in machine.tick(now_ns)])

    def _told(self, changes: list[StateRow]) -> list[StateRow]:
        """A server of others that came back is another process: that one is watched from now on."""
        for change in changes:
            back = change["from"] == "restarting" and change["to"] == "healthy"
            if back and self._watch is not None and self.place.kind == "external":
                self._watch.set_process(change["replica"], self.pid_of(change["replica"]))
        return changes

    @property
    def state(self) -> str:
        """The state that decides whether load makes sense: the best of the replicas."""
        states = [machine.state for machine in self._machines.values()]
        return next((s for s in states if s not in DOWN), states[0])

    @property
    def down(self) -> bool:
        """Whether no replica can answer."""
        return self.state in DOWN

    @property
    def replicas(self) -> dict[str, str]:
        """URLs of the replicas by name, for attacks on each."""
        if self._profile.target.replicas and self.place.kind == "external":
            return {r.name: parse_target(r.url) for r in self._profile.target.replicas}
        return {"server": self.place.admin_url or self.url}

    def pid_of(self, name: str) -> int | None:
        """The root of a replica's processes as of now; None where it is gone, or not plainly a process on this machine."""
        if self.place.kind != "external":
            return None if self.launched is None or self.launched.exit.done() else self.launched.pid
        if self.place.pid is not None and psutil.pid_exists(self.place.pid):
            return self.place.pid
        return authorization.listener_pid(self.replicas[name])

    def gone(self) -> str | None:
        """Why the server we launched is gone, None while it lives or is not ours."""
        if self.launched is None or not self.launched.exit.done():
            return None
        log = self._folder / "server.log"
        if self.launched.pid is None:
            return f"it {self.launched.exit.result().reason}"
        return f"it {self.launched.exit.result().reason}{_last_words(log)}; its log is {log}"

    @property
    def lost(self) -> bool:
        """Whether the keeper of the server is gone, so that neither its log nor its end is known."""
        return self.launched is not None and self.launched.lost


def _speaks_of_an_end(row: Row) -> bool:
    """Whether a row may be a sign of death."""
    kind, what = row.get("row"), row.get("what")
    return (kind == "process" and what == "gone") or (kind == "launch" and what == "exit") or row.get("ok") is False


def _last_words(log: Path) -> str:
    """What a server that ended said last, in words for a sentence."""
    line = last_line(log)
    return f" and said last: {line!r}" if line else " without a word"


def _guess(profile: Profile) -> Dialect:
    """The dialect to watch with until the server itself has told: the profile's, the embedded server's, or vLLM's."""
    if profile.target.dialect != "auto":
        return DIALECTS[profile.target.dialect]
    return DIALECTS[profile.target.embedded.dialect] if profile.target.embedded else DEFAULT_DIALECT


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
