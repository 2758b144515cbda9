"""One run of a profile, step by step, from preparation to verdict. This process is asyncio and does only what must not
wait. Whatever happens, a bug of our own included, attacks are undone, what the run started is stopped, and what was
recorded is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Callable

from loadchaos.core.errors import UnreachableError
from loadchaos.core.ledger.rows import RunDetail
from loadchaos.profile.profile import Profile
from loadchaos.run.children import FollowerProcess
from loadchaos.run.console import Console
from loadchaos.run.finalize import Result, conclude_interruptible
from loadchaos.run.follower_thread import FollowerThread
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.last_question import LastQuestion
from loadchaos.run.load_session import LoadSession, WebStart
from loadchaos.run.options import Options
from loadchaos.run.prepare import Preparation
from loadchaos.run.run_attacks import RunAttacks
from loadchaos.run.run_context import RunContext
from loadchaos.run.run_errors import RunErrors
from loadchaos.run.run_probes import RunProbes
from loadchaos.run.server_under_test import ServerUnderTest
from loadchaos.server.repeat import until_next_s

_TICK_S, _CALM_TICK_S = 0.1, 0.5
_UNSEEN_POLLS = 2
"""Beside a load whose requests nobody sees, only the server is looked at in each tick: a watch lasts for weeks."""


async def run_quietly(
    profile: Profile, options: Options, interrupts: Interrupts, print_line: Callable[[str], None]
) -> Result:
    return await _Run(RunContext.create(profile, options, interrupts, print_line), None).execute()


async def run(profile: Profile, options: Options, interrupts: Interrupts, web_start: WebStart | None = None) -> Result:
    """Run a profile to its end. Raises LoadchaosError for mistakes found before a run folder exists."""
    with contextlib.closing(Console()) as console:
        context = RunContext.create(profile, options, interrupts, console.print)
        if web_start is not None:
            web_start.ui.write("run", folder=str(context.record.folder.path.resolve()))
        return await _Run(context, web_start, keeps_nothing=web_start is None).execute()


class _Run:
    """`keeps_nothing`: a run that ends before its load, with nothing to judge, leaves no folder and no verdict."""

    def __init__(self, context: RunContext, web_start: WebStart | None, *, keeps_nothing: bool = False) -> None:
        self._context, self._keeps_nothing = context, keeps_nothing
        self._record, self._interrupts = context.record, context.interrupts
        self._folder = context.record.folder
        self._errors = RunErrors(self._folder.path, self._record.redactor)
        self._attacks = RunAttacks()
        calm = context.options.load_unseen
        self._server = ServerUnderTest(context.profile, context.target, self._record, self._record.redactor, calm=calm)
        self._probes = RunProbes(context.profile, self._server, self._record, self._record.redactor)
        self._last_question = LastQuestion(self._server, self._record, self._record.redactor)
        self._load = LoadSession(context, self._server, self._attacks, web_start)
        alone = calm and not context.options.live
        self._follower = FollowerThread(self._folder) if alone else FollowerProcess(self._folder)
        self._polls = 0
        self._record.listen(self._attacks.fold)
        self._record.listen(self._server.fold)
        self._record.listen(self._probes.fold)
        if isinstance(self._follower, FollowerThread):
            self._record.listen(self._follower.fold)  # the last one: the state of the server is written before

    async def execute(self) -> Result:
        with self._interrupts.handled_by(self._interrupted):
            return await self._steps()

    def _interrupted(self, number: signal.Signals) -> None:
        if self._load.ended_by(number):
            self._interrupts.forgive()
            self._context.print_line("ending the watch (press Ctrl-C again to stop at once)")
            return
        self._record.run("interrupted", signal=number.name)
        if self._ends_before_load:
            self._follower.kill()  # it would speak of the load; one line at the end says all
            return
        if self._interrupts.count == 1:
            self._context.print_line("interrupted: stopping the run cleanly (press Ctrl-C again to stop at once)")
        else:
            self._context.print_line("interrupted again: stopping the run at once")

    async def _steps(self) -> Result:
        with self._errors.collect():
            self._record.begin(self._context.profile, self._context.options, self._context.target)
            if await self._interrupts.wait(self._prepare(), self._poll, lambda: self._load.stop_pressed):
                await self._load_and_attack()
        self._load.close()
        for step in (
            self._probes.stop,
            self._load.end,
            self._undo_attacks,
            self._load.record_end,
            self._wait_for_last_words,
            self._settle_restarts,
            self._wait_until_idle,
            self._ask_last_question,
            self._probes.check,
            self._load.cancel_restart,
            self._stop_server,
            self._close_record,
            self._end_follower,
            self._record.end_compaction,
        ):
            with self._errors.collect():
                await step()
        return await self._judge()

    async def _prepare(self) -> None:
        await self._load.warm_up()
        self._attacks.prepared(await Preparation(self._context, self._server, self._probes, self._last_question).run())

    async def _load_and_attack(self) -> None:
        options = self._context.options
        if not options.replay:
            await self._follower.begin(
                options.exporter_port, options.follower_variables, live=options.live, cockpit=self._load.has_web_ui
            )
        await self._load.start(self._tick)
        self._record.run("load_begin")
        await self._attacks.start(await self._replay_begin_s())
        self._probes.start()
        await self._load.drive(self._tick)

    async def _replay_begin_s(self) -> float | None:
        """Wait until a replay has begun: its attacks count from there. Returns None for any other load."""
        if any(phase.replay is not None for phase in self._context.profile.load):
            while self._load.alive and self._load.begun_s is None and not self._context.interrupts:
                await self._tick()
        return self._load.begun_s

    async def _tick(self) -> None:
        await asyncio.sleep(until_next_s(_CALM_TICK_S if self._load.unseen else _TICK_S))
        self._poll()

    def _poll(self) -> None:
        self._server.tick()
        self._polls += 1
        if self._load.unseen and self._polls % _UNSEEN_POLLS:
            return
        self._load.poll()
        self._load.tick()
        if self._load.running and not self._interrupts and (notice := self._follower.exit_notice()):
            self._context.print_line(notice)
        self._record.tick(loading=self._load.running)

    async def _undo_attacks(self) -> None:
        not_undone = await self._attacks.undo()
        self._errors.not_undone = not_undone if self._context.target.kind == "external" else []

    async def _wait_for_last_words(self) -> None:
        """Wait for a dying server to log the cause and exit. Its log is the only source of a cause."""
        begin_s = time.monotonic()
        while self._server.dying and time.monotonic() - begin_s < self._interrupts.timeouts.settle_s:
            await self._tick()
        self._load.read_rows()

    async def _settle_restarts(self) -> None:
        begin_s, begin_ns = time.monotonic(), time.monotonic_ns()
        while self._load.begun and self._server.unsettled(begin_ns):
            if time.monotonic() - begin_s >= self._interrupts.timeouts.restart_s:
                break
            await self._tick()

    async def _wait_until_idle(self) -> None:
        """Wait for idle gauges where clients aborted requests as planned. The judge interprets them."""
        begin_ns = time.monotonic_ns()
        if not self._load.begun or not any(t.behaviours for t in self._context.profile.traffic):
            return
        while not self._server.idle_since(begin_ns) and not self._server.down and not self._interrupts:
            await self._tick()

    async def _ask_last_question(self) -> None:
        if self._context.options.replay and self._load.begun:
            await self._last_question.ask(self._tick, lambda: bool(self._interrupts))

    async def _stop_server(self) -> None:
        await self._server.stop(grace_s=self._interrupts.timeouts.server_s)

    async def _close_record(self) -> None:
        self._record.run("end", **self._exit_reason())
        self._record.sync()
        self._record.close()

    async def _end_follower(self) -> None:
        # Where the last row could not be written, the follower would wait for it forever.
        at_once = self._record.lost or self._ends_before_load
        await self._follower.finish(0.0 if at_once else self._interrupts.timeouts.follower_s)

    def _exit_reason(self) -> RunDetail:
        reason: RunDetail = {}
        if self._interrupts:
            reason = {"exit_code": self._interrupts.exit_code, "why": self._interrupts.first.name}
        elif errors := self._errors.exit_reason():
            reason = errors
        elif failure := self._load.failure():
            reason = {"why": failure}
        elif self._load.stop_pressed and not self._load.begun:
            reason = {"why": "Stop was pressed before the load began"}
        if self._record.lost:
            reason["ledger_lost"] = self._record.lost
        return reason

    @property
    def _ends_before_load(self) -> bool:
        """True where a signal, or a target at which no server answers, ends the run before its load and its attacks."""
        ends = self._interrupts or isinstance(self._errors.error, UnreachableError)
        return bool(self._keeps_nothing and self._load.begun_s is None and not self._attacks.begun and ends)

    def _leave_nothing(self) -> Result:
        code, text = UnreachableError.exit_code, str(self._errors.error)
        if self._interrupts:
            code, text = self._interrupts.exit_code, "interrupted before the load: no request of it was sent"
        if self._server.launched is not None and self._context.target.kind == "launched":
            return Result(code, None, self._folder, f"{text}; the log of the server is {self._folder.server_log}")
        shutil.rmtree(self._folder.path, ignore_errors=True)
        return Result(code, None, self._folder, text)

    async def _judge(self) -> Result:
        died = self._server.state in ("dying", "dead", "restarting")
        if self._ends_before_load and not (died or self._errors.is_bug):
            return self._leave_nothing()
        try:
            verdict = await conclude_interruptible(self._folder, self._context.print_line, self._interrupts)
        except Exception as e:  # noqa: BLE001 - the ledger is complete: a later loadchaos may judge it
            exit_code, text = self._errors.of_judge(e)
            return Result(exit_code, None, self._folder, self._error_summary(text))
        return Result(verdict.exit_code, verdict, self._folder, self._error_summary(None))

    def _error_summary(self, judge_error: str | None) -> str | None:
        lost = self._record.lost
        unwritten = f"the ledger could not be written, so later rows are missing: {lost}" if lost else None
        return self._errors.summary(unwritten, self._load.failure(), judge_error)
