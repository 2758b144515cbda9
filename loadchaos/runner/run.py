"""One run, told in order: ledger, server, watch, preflight, load and attacks, the end, the verdict.

This process is asyncio and does only what must not wait: it never formats, classifies or renders. The load runs in the
Locust child, telling in the follower; both may die without taking the record with them. Whatever happens, a mistake of
our own included, the end is the same: attacks are undone, what we started is stopped, and what was recorded is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadchaos import __version__
from loadchaos.chaos import AttackInjector
from loadchaos.core.errors import LedgerError, LoadchaosError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.recorder import EventRecorder, create_folder
from loadchaos.core.model import Row
from loadchaos.core.redact import Redactor
from loadchaos.load import rebuild
from loadchaos.load.disk_space import DiskMonitor
from loadchaos.profile.profile import Profile
from loadchaos.runner.checkpoint import Checkpoint
from loadchaos.runner.children import Compaction, FollowerProcess, LoadProcess, Locust
from loadchaos.runner.console import Console
from loadchaos.runner.finalize import conclude_interruptible
from loadchaos.runner.options import Master, Options, locust_arguments, place, terms
from loadchaos.runner.pause_gate import PauseGate
from loadchaos.runner.prepare import Preparation
from loadchaos.runner.run_errors import RunErrors
from loadchaos.runner.server_under_test import ServerUnderTest, TargetSpec
from loadchaos.runner.shutdown_timeouts import SHUTDOWN_TIMEOUTS, ShutdownTimeouts
from loadchaos.runner.wait_idle import IdleWait
from loadchaos.runner.web_commands import Commands
from loadchaos.runner.web_session import Ui, UiLoad
from loadchaos.runner.worker_notices import WorkerNotices

_LOOP_S = 0.1
_SYNC_S = 1.0
_BODIES_S = 5.0  # what is not made in this time is listed; `loadchaos judge` makes it without a limit
_SILENT_S = 30.0  # heartbeats come every 250 ms; before the first one Locust needs a second or two to start


@dataclass(frozen=True)
class Result:
    """What the command line needs to end: the exit code, the verdict (None: nothing was judged), where all of it lies."""

    exit_code: int
    verdict: Mapping[str, Any] | None
    folder: RunFolder
    error: str | None = None


@dataclass(frozen=True)
class Pressed:
    """Start, pressed in the web UI `ui`: the command's row says with which users."""

    ui: Ui
    start: Row


async def run(profile: Profile, options: Options, pressed: Pressed | None = None) -> Result:
    """Run a profile to its end. Raises LoadchaosError for what is wrong before a run folder exists."""
    where = place(profile, options)
    folder = create_folder(options.out, profile.name)
    if pressed is not None:
        pressed.ui.tell("run", folder=str(folder.path.resolve()))
    voice = Console()
    try:
        return await _Run(profile, options, where, folder, voice.say, pressed).go()
    finally:
        voice.close()


class _Run:
    """The state of one run; `go` tells it in order."""

    def __init__(
        self,
        profile: Profile,
        options: Options,
        where: TargetSpec,
        folder: RunFolder,
        say: Callable[[str], None],
        pressed: Pressed | None,
    ) -> None:
        self._profile, self._options, self._place, self._say = profile, options, where, say
        self.folder = folder
        self._redactor = Redactor.from_environment(os.environ)
        for value in where.headers.values():
            self._redactor.add(value)
            self._redactor.add(value.split(" ")[-1])  # without `Bearer`
        if profile.target.launch is not None:
            self._redactor.mapping(profile.target.launch.env)
            self._redactor.argv(list(profile.target.launch.command))
        self._record = EventRecorder(folder, self._feed)
        self._patient = ServerUnderTest(profile, where, folder.path, self._redactor)
        self._gate = PauseGate(profile, self._patient, self._record, say)
        self._tails: dict[str, Tail] = {}
        self._attacks: AttackInjector | None = None
        self._undone: asyncio.Task[list[str]] | None = None
        self._locust: LoadProcess = Locust(folder, self._record.event)
        self._commands: Commands | None = None
        if pressed is not None:
            self._locust = UiLoad(pressed.ui, folder, self._record.event)
            self._commands = Commands(self._record, where, options.authorize, pressed.start)
        self._follower = FollowerProcess(folder)
        self._interrupts: list[int] = []
        self._synced = 0.0
        self._idle = IdleWait()
        self._silent_turns = 0  # turns and not time: who was stopped himself has heard nothing either
        self._loading = self._sent_load = self._shortened = False
        self._assembly = WorkerNotices(say)
        self._checkpoint = Checkpoint()
        self._disk = DiskMonitor(folder.path)
        self._compaction = Compaction(folder)
        self._troubles = RunErrors(folder.path, self._redactor)

    # --- told in order --------------------------------------------------------------------------------------------------

    async def go(self) -> Result:
        """Everything from the first row to the verdict."""
        self._hear_signals()
        try:
            self._begin()
            if await self._unless_interrupted(self._prepare()):
                await self._load()
        except LoadchaosError as e:
            self._troubles.error = e
        except Exception as e:  # noqa: BLE001 - a mistake of ours must not cost the record of what was seen so far
            self._troubles.mistook(e)
        await self._end()
        return await self._conclude()

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means: go on without a terminal
            loop.add_signal_handler(signal.SIGHUP, self._interrupt, signal.SIGTERM)

    def _begin(self) -> None:
        """The first rows: what was asked for, by whom, on what terms."""
        profile, options = self._profile, self._options
        self._record.run(
            "begin",
            profile=profile.name,
            argv=self._redactor.argv(list(options.argv)),
            version=__version__,
            target={"kind": self._place.kind, "url": self._place.url},
            seed=options.seed,
            duration_s=options.duration_s,
            server_logs=[self._redactor.text(spec) for spec in options.server_log],
            terms=terms(profile, options).to_json(),
            resumes=options.resume.run if options.resume is not None else None,
        )
        self._record.keep(self.folder.profile, self._redactor.text(profile.to_yaml()))

    async def _unless_interrupted(self, work_to_do: Awaitable[None]) -> bool:
        """Wait for a part that takes its time; False when the user ended the run meanwhile."""
        work = asyncio.ensure_future(work_to_do)
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_LOOP_S)
                self._housekeeping()
                if self._interrupts or self._stop_pressed:
                    return False
            await work
            return True
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, LoadchaosError):
                await work

    async def _prepare(self) -> None:
        before = Preparation(self._profile, self._options, self._patient, self._record, self._redactor, self._say)
        self._attacks = self._gate.attacks = await before.run()

    async def _load(self) -> None:
        """Drive and attack until Locust is done or somebody ends it."""
        assert self._attacks is not None
        self._loading = self._sent_load = True
        self._silent_turns = 0
        await self._follower.begin(
            self._options.exporter_port,
            self._options.follower_variables,
            live=self._options.live,
            cockpit=self._commands is not None,
        )
        if self._commands is not None:
            self._commands.load_begins(self._attacks)
        await self._locust.begin(*locust_arguments(self._options))
        if self._options.master is not None:
            await self._assemble(self._options.master)
        self._record.run("load_begin")
        await self._attacks.start()
        self._patient.ask_on()
        begin = time.monotonic()
        stopping_since: float | None = None
        while self._locust.alive:
            await asyncio.sleep(_LOOP_S)
            self._housekeeping()
            if self._silent_turns * _LOOP_S > _SILENT_S:
                raise LedgerError(
                    f"the load process was silent for {_SILENT_S:g} s and was ended: see locust.log, run it again"
                )
            now = time.monotonic()
            if stopping_since is None and (why := self._why_stop(now - begin)):
                stopping_since = now
                self._gate.ending = True
                self._record.control("stop", why, grace_s=self._pace.drain_s)
                self._undo_attacks()
            # A Locust that does not hear its control file is ended by signal; its begin rows stay as `unfinished`.
            if stopping_since is not None and now - stopping_since > self._pace.locust_s:
                await self._locust.end(self._pace.locust_term_s)
        self._locust.ended()
        self._loading = False

    async def _assemble(self, master: Master) -> None:
        """Wait for the workers on other machines; how long, the load process knows."""
        self._assembly.call(master, None if self._place.kind == "external" else self._patient.url)
        while self._locust.alive and not self._interrupts and not self._assembly.begun:
            await asyncio.sleep(_LOOP_S)
            self._housekeeping()

    async def _end(self) -> None:
        """Whatever happened: undo attacks, stop what we started, let the follower read to the end."""
        self._loading = False
        self._gate.ending = True
        parts = [self._patient.ask_no_more, self._end_locust, self._take_back, self._load_ended, self._settle]
        parts += [self._gate.close, self._stop_server, self._close_record, self._end_follower, self._compaction.end]
        for part in parts:
            try:
                await part()
            except LoadchaosError as e:
                self._troubles.error = self._troubles.error or e
            except Exception as e:  # noqa: BLE001 - what fails in one part of the end must not keep the others from it
                self._troubles.mistook(e)

    async def _end_locust(self) -> None:
        if self._locust.alive:
            self._record.control("stop", "the run ends", grace_s=1.0)
            await self._locust.end(self._pace.locust_term_s + 2.0)
            self._locust.ended()

    def _undo_attacks(self) -> None:
        """Begin to take back what holds; beside the drain of the load, which a paused server would never finish."""
        if self._undone is None and self._attacks is not None:
            self._undone = asyncio.create_task(self._attacks.stop())

    async def _take_back(self) -> None:
        self._undo_attacks()
        if self._undone is not None:
            left = await self._undone
            self._troubles.left_over = left if self._place.kind == "external" else []

    async def _load_ended(self) -> None:
        if self._sent_load:
            self._record.run("load_end", shortened=self._shortened)

    async def _settle(self) -> None:
        """A server that dies needs some seconds to say why and to exit; its log is the only source of a cause."""
        begin = time.monotonic()
        while self._patient.down and self._patient.gone() is None and time.monotonic() - begin < self._pace.settle_s:
            await asyncio.sleep(_LOOP_S)
            self._housekeeping()
        self._read_requests()
        await self._see_idle()

    async def _see_idle(self) -> None:
        """Where clients hung up as planned, look at the gauges until all are forgotten; the judge says what it means."""
        begin_ns = time.monotonic_ns()
        if not self._sent_load or not any(t.behaviours for t in self._profile.traffic):
            return
        while not self._idle.seen_since(begin_ns) and not self._patient.down and not self._interrupts:
            await asyncio.sleep(_LOOP_S)
            self._housekeeping()

    async def _stop_server(self) -> None:
        await self._patient.stop(grace_s=self._pace.server_s)

    async def _close_record(self) -> None:
        self._record.run("end", **self._how_it_ended())
        self._record.sync()
        self._record.close()

    async def _end_follower(self) -> None:
        # Where the last row could not be written, it would wait for it in vain.
        await self._follower.finish(0.0 if self._record.lost else self._pace.follower_s)

    def _how_it_ended(self) -> dict[str, Any]:
        end: dict[str, Any] = {}
        if self._interrupts:
            end = {"exit_code": 128 + self._interrupts[0], "why": signal.Signals(self._interrupts[0]).name}
        elif why := self._troubles.why():
            end = why
        elif failed := self._locust.how_it_failed():
            end = {"why": failed}
        elif self._stop_pressed and not self._sent_load:
            end = {"why": "Stop was pressed before the load began"}
        if self._record.lost:
            end["ledger_lost"] = self._record.lost
        return end

    async def _conclude(self) -> Result:
        """Judge the finished ledger once; that verdict counts."""
        keep = functools.partial(rebuild.store, budget_s=_BODIES_S)
        try:
            verdict = await conclude_interruptible(self.folder, keep, self._say, self._interrupts)
        except LoadchaosError as e:
            return Result(e.exit_code, None, self.folder, self._in_words(str(e)))
        except Exception as e:  # noqa: BLE001 - the ledger is whole: a later loadchaos may judge it
            self._troubles.mistook(e)
            return Result(LedgerError.exit_code, None, self.folder, self._in_words(None))
        return Result(int(verdict["exit_code"]), verdict, self.folder, self._in_words(None))

    def _in_words(self, also: str | None) -> str | None:
        return self._troubles.in_words(self._record.lost, self._locust.how_it_failed(), also)

    # --- the loop ---------------------------------------------------------------------------------------------------------

    @property
    def _pace(self) -> ShutdownTimeouts:
        return SHUTDOWN_TIMEOUTS[min(len(self._interrupts), 2)]

    @property
    def _stop_pressed(self) -> bool:
        return self._commands is not None and self._commands.stop_asked

    def _housekeeping(self) -> None:
        self._read_requests()
        if self._commands is not None:
            self._commands.turn()
        for change in self._patient.tick():
            self._record.event(change)
        if self._loading:
            self._gate.turn()
            if told := self._follower.lost():
                self._say(told)
        now = time.monotonic()
        if self._loading and (so_far := self._checkpoint.due(now)) is not None:
            self._record.run("checkpoint", **so_far)
            self._say(self._checkpoint.words(so_far))
            self._compaction.begin()
        if self._loading and (disk := self._disk.changed(now)) is not None:
            self._record.event(disk)
            self._record.control("brief" if self._disk.low else "whole", disk["text"])
            self._say(f"note: {disk['text']}")
        if now - self._synced > _SYNC_S:
            self._synced = now
            self._record.sync()

    def _feed(self, row: Row) -> None:
        """Every row we write is a sign of the server's state, too; state rows themselves are none."""
        if row.get("row") == "state":
            return
        if self._attacks is not None:
            self._attacks.feed(row)
        self._idle.feed(row)
        for change in self._patient.feed(row):
            self._record.event(change)

    def _read_requests(self) -> None:
        """The workers' newest rows: our own tokens arriving are the first sign of the server's progress."""
        self._silent_turns += 1
        for path in self.folder.request_files():
            for row in self._tails.setdefault(path.name, Tail(path)).rows():
                self._silent_turns = 0
                row["file"] = path.name  # heartbeats are a worker's: the file says whose
                self._locust.see(row)
                self._checkpoint.feed(row)
                self._assembly.see(row)
                self._feed(row)

    def _why_stop(self, loaded_s: float) -> str | None:
        """Why the load has to end now, None while it may go on."""
        if self._interrupts:
            return "interrupted"
        if self._record.lost:
            return f"the ledger cannot be written: {self._record.lost}"
        if self._options.duration_s is not None and loaded_s > self._options.duration_s:
            self._shortened = True
            return "the duration asked for is over"
        if self._stop_pressed:
            self._shortened = True
            return "Stop was pressed"
        return self._locust.lost() or self._gate.why_give_up()

    # --- small ------------------------------------------------------------------------------------------------------------

    def _interrupt(self, number: int) -> None:
        self._interrupts.append(number)
        self._record.run("interrupted", signal=signal.Signals(number).name)
        self._say("ending in order; again to end at once" if len(self._interrupts) == 1 else "ending at once")
