"""Drive the load of one run: start, watch, pause and stop it."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loadchaos.core.errors import AuthorizationError, LedgerError
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.model import Row
from loadchaos.core.units import format_duration
from loadchaos.profile import abort_rule
from loadchaos.run.children import Locust, ReplayWorker
from loadchaos.run.error_rate_watch import ErrorRateWatch
from loadchaos.run.options import locust_arguments
from loadchaos.run.others_load import ProxyLoad, ProxySetup, UnseenLoad, proxy_variables
from loadchaos.run.pause_gate import PauseGate
from loadchaos.run.run_attacks import RunAttacks
from loadchaos.run.run_context import RunContext
from loadchaos.run.server_under_test import ServerUnderTest
from loadchaos.run.web_commands import WebCommands
from loadchaos.run.web_session import WebLoad, WebUiProcess
from loadchaos.run.worker_notices import WorkerNotices

Tick = Callable[[], Awaitable[None]]
"""Lets 0.1 s pass and polls all parts of the run."""
_TICK_S = 0.1
_SILENT_S = 30.0  # heartbeats come every 250 ms; before the first one Locust needs a second or two to start


@dataclass(frozen=True)
class WebStart:
    """Press of the Start button in `ui`, with the row of its command."""

    ui: WebUiProcess
    command: Row


class LoadSession:
    """Load process of one run, with pause gate and web UI commands. `begun` stays set, `running` only while it drives;
    `shortened`: ended before its plan. `begun_s`: monotonic time of the first worker's first row.
    """

    def __init__(
        self, context: RunContext, server: ServerUnderTest, attacks: RunAttacks, web_start: WebStart | None
    ) -> None:
        self._context, self._server, self._attacks = context, server, attacks
        self._record, self._interrupts = context.record, context.interrupts
        self._gate = PauseGate(context.profile, server, attacks, context.record, context.print_line)
        self._notices = WorkerNotices(context.print_line, context.profile.limits)
        self._tails: dict[str, Tail] = {}
        self._silent_ticks = 0  # ticks and not time: a run that was stopped (SIGSTOP) has received nothing either
        self.begun = self.running = self.shortened = False
        self.begun_s: float | None = None
        self._loading_since_s: float | None = None  # by our clock; a process needs seconds to start on a busy machine
        rule = context.profile.abort_when
        self._watch = context.options.watch
        if self._watch is not None:
            context.record.listen(self._watch.fold)
        self._errors = None if rule is None else ErrorRateWatch(abort_rule.parse(rule))
        self._aborted: str | None = None
        self._cut: str | None = None
        self._told_to_end: str | None = None
        folder = context.record.folder
        self._process: Locust | WebLoad | UnseenLoad = Locust(folder, self._record.event)
        self._replay: ReplayWorker | None = None
        if context.options.replay:
            self._process = self._replay = ReplayWorker(folder, self._record.event)
        if (others := context.options.others) is not None:
            self._process = ProxyLoad(folder, self._record.event) if others.has_proxy else UnseenLoad()
        self._commands: WebCommands | None = None
        if web_start is not None:
            self._process = WebLoad(web_start.ui, folder, self._record.event)
            self._commands = WebCommands(self._record, context.target, context.options.authorize, web_start.command)

    async def warm_up(self) -> None:
        if self._replay is not None:
            await self._replay.warm_up(locust_arguments(self._context.options, self._context.profile)[1])

    async def start(self, tick: Tick) -> None:
        self.begun = self.running = True
        self._silent_ticks = 0
        if self._commands is not None:
            self._commands.load_begins(self._attacks.injector)
        await self._process.begin(*self._arguments())
        if isinstance(self._process, UnseenLoad):
            self.begun_s = self._loading_since_s = time.monotonic()
        if (master := self._context.options.master) is not None:
            self._notices.waiting(master, None if self._context.target.kind == "external" else self._server.url)
            # The load process knows how long to wait for them.
            while self._process.alive and not self._interrupts and not self._notices.load_begun:
                await tick()

    def _arguments(self) -> tuple[list[str], dict[str, str]]:
        options, folder = self._context.options, self._record.folder.path
        if (others := options.others) is None:
            return locust_arguments(options, self._context.profile)
        listen, tls = others.listen or ("127.0.0.1", 0), self._context.target.tls
        url, via = self._server.url, self._server.proxy_address
        setup = ProxySetup(str(folder.resolve()), url, via, tls, listen, others.command)
        return [others.proxy_module], proxy_variables(setup)

    def ended_by(self, number: signal.Signals) -> bool:
        """Tell whether a signal is the regular end of the load, as of a watch without one of its own; end it then."""
        others = self._context.options.others
        regular = self.running and others is not None and not others.command and not self._told_to_end
        if regular:
            self._told_to_end = f"{number.name} ended the watch"
        return regular

    async def drive(self, tick: Tick) -> None:
        """Tick until the load process is done, or stop it. Raises LedgerError when it is silent, and
        AuthorizationError where another server, which may not be harmed, answers in place of the one that was checked.
        """
        stopped_s: float | None = None
        unseen = self.unseen
        while self._process.alive:
            await tick()
            if self._server.no_leave is not None:
                raise AuthorizationError(f"the load was ended: {self._server.no_leave}")
            if self._silent_ticks * _TICK_S > _SILENT_S and not unseen:
                raise LedgerError(
                    f"the load process wrote nothing for {_SILENT_S:g} s and was ended: see locust.log and run it again"
                )
            now_s = time.monotonic()
            loaded_s = 0.0 if self._loading_since_s is None else now_s - self._loading_since_s
            if stopped_s is None and (why := self._stop_reason(loaded_s)):
                stopped_s = now_s
                self._gate.closing = True
                self._record.control("stop", why, grace_s=self._interrupts.timeouts.drain_s)
                self._attacks.begin_undo()
            # A Locust that does not read its control file is ended by signal; its begin rows stay as `unfinished`.
            starting = self.begun_s is None and bool(self._interrupts) and self._context.options.master is None
            # Workers elsewhere have to be told.
            patience_s = 0.0 if starting or unseen else self._interrupts.timeouts.locust_s
            if stopped_s is not None and now_s - stopped_s > patience_s:
                await self._process.end(self._interrupts.timeouts.locust_term_s)
        self._process.record_exit()
        self.running = False

    def close(self) -> None:
        self.running = False
        self._gate.closing = True

    async def end(self) -> None:
        if self._process.alive:
            self._record.control("stop", "the run ends", grace_s=1.0)
            await self._process.end(self._interrupts.timeouts.locust_term_s + 2.0)
            self._process.record_exit()

    async def record_end(self) -> None:
        if self.begun:
            self._record.run("load_end", shortened=self.shortened, aborted=self._aborted, cut=self._cut)

    async def cancel_restart(self) -> None:
        await self._gate.close()

    @property
    def unseen(self) -> bool:
        """True while the requests of others are the load, and none of them passes here."""
        return self.running and isinstance(self._process, UnseenLoad)

    def poll(self) -> None:
        self.read_rows()
        if self._commands is not None:
            self._commands.poll()

    def tick(self) -> None:
        if self.running:
            self._gate.tick()

    def read_rows(self) -> None:
        """Read the workers' newest rows. Tokens that arrive are the first sign of the server's progress."""
        self._silent_ticks += 1
        for path in self._record.folder.request_files():
            for row in self._tails.setdefault(path.name, Tail(path)).rows():
                self._silent_ticks = 0
                if row["row"] == "load" and row.get("what") == "begin" and self.begun_s is None:
                    self.begun_s = int(row["at_ns"]) / 1e9
                    self._loading_since_s = time.monotonic()
                row["file"] = path.name  # heartbeats are of one worker: the file tells which
                self._process.fold(row)
                self._notices.fold(row)
                if self._errors is not None:
                    self._errors.fold(row)
                self._record.fold(row)

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def has_web_ui(self) -> bool:
        return self._commands is not None

    @property
    def stop_pressed(self) -> bool:
        return self._commands is not None and self._commands.stop_asked

    def failure(self) -> str | None:
        return self._process.failure()

    def _stop_reason(self, loaded_s: float) -> str | None:
        duration_s = self._context.options.duration_s
        if self._interrupts:
            return "interrupted"
        if self._record.lost:
            return f"the ledger cannot be written: {self._record.lost}"
        if duration_s is not None and loaded_s > duration_s:
            self.shortened = True
            if not self._context.options.duration_is_end:
                self._cut = f"--duration {format_duration(duration_s)}"
            return "the given time has passed"
        if self.stop_pressed:
            self.shortened, self._cut = True, "Stop in the web UI"
            return "Stop was pressed"
        if self._watch is not None and (why := self._watch.reason()) is not None:
            self.shortened = True
            return why
        if self._errors is not None and (why := self._errors.reason()) is not None:
            self._aborted = why
            self._context.print_line(f"the load ends early: {why}")
            return f"abort_when: {why}"
        if self._context.options.others is not None:
            return self._told_to_end or self._process.lost_reason()
        return self._process.lost_reason() or self._gate.stop_reason()
