"""Run the steps of a capacity search, one run each, and keep its files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from loadchaos.analysis.capacity import findings
from loadchaos.analysis.capacity.result import CapacityResult, CurrentStep, SearchedPhase, SearchFailure, SearchOptions
from loadchaos.analysis.capacity.step_watch import StepPlan, StepProgress, StepWatch
from loadchaos.analysis.failure import DEADLY_OR_HUNG
from loadchaos.campaigns.campaign import Campaign, counting_failures, server_of
from loadchaos.campaigns.capacity import files
from loadchaos.campaigns.capacity.search import CapacitySearch, NextStep, SearchSettings
from loadchaos.campaigns.capacity.step_profile import step_plan, step_profile
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.model import ServerName
from loadchaos.core.redact import Redactor
from loadchaos.core.units import describe_duration, iso_utc
from loadchaos.profile.profile import Profile
from loadchaos.profile.target import Launch
from loadchaos.report.capacity_text import load_text, step_line
from loadchaos.report.formatting import duration
from loadchaos.run.finalize import Result
from loadchaos.run.held_server import HeldServer
from loadchaos.run.options import Options
from loadchaos.run.run import run_quietly
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.process.launcher import CommandLine

_LEAST_STEP_S = 20.0
_AFTER_S = 15.0
LEAST_BUDGET_S = _LEAST_STEP_S + _AFTER_S
_SHORT_STEP_S, _AROUND_PROOF_S = 16.0, 10.0
"""Time of a short step, and of the start and the warm-up of a long one."""
_LIVE_S = 1.0


@dataclass(frozen=True)
class CapacitySettings:
    """Settings of a search. `at_least`: the result fails where the capacity is proved to be below. `wanted`: options of
    the command. `phase`: that of the profile whose traffic is sent.
    """

    search: SearchSettings
    budget_s: float
    target: str
    at_least: float | None
    wanted: SearchOptions
    phase: SearchedPhase


@dataclass(frozen=True)
class SearchOutput:
    """Receivers of progress as a line, once a second, and of capacity.json, with `current` while a step runs."""

    live: Callable[[str], None]
    publish: Callable[[CapacityResult], None] = lambda _: None


class _LiveWatch(StepWatch):
    def __init__(self, plan: StepPlan, live: Callable[[StepProgress], None]) -> None:
        super().__init__(plan)
        self._live, self._printed_s = live, 0.0

    def reason(self) -> str | None:
        now_s = time.monotonic()
        if now_s - self._printed_s >= _LIVE_S:
            self._printed_s = now_s
            self._live(self.progress())
        return super().reason()


class CapacitySession:
    """Runs a search; a server that the profile launches is started once, without a target in the options."""

    def __init__(
        self, campaign: Campaign, profile: Profile, settings: CapacitySettings, options: Options, output: SearchOutput
    ) -> None:
        self._campaign, self._profile, self._settings, self._options = campaign, profile, settings, options
        self._announce, self._live, self._output = campaign.print_line, output.live, output
        self._search = CapacitySearch(settings.search)
        self._started = iso_utc(timespec="seconds")
        self._server = ServerName()
        self._failures: dict[str, SearchFailure] = {}
        self._code: int | None = None
        self._ended_by = ""
        self._interrupts = campaign.interrupts

    def restore(self, data: CapacityResult) -> None:
        for step in data.steps:
            self._search.add(step)
        self._campaign.before_s, self._started, self._server = data.seconds, data.started, data.server
        self._failures = {f.id: f for f in data.failures}

    @property
    def spent_s(self) -> float:
        return self._campaign.at_s

    def result(self, *, ended: bool) -> CapacityResult:
        steps, settings, search = self._search.steps, self._settings, self._settings.search
        code = self._exit_code() if ended else None
        ended = ended and not self._interrupts
        return CapacityResult(
            verdict=exit_codes.verdict_of(code) if ended and code is not None else None,
            exit_code=code,
            target=settings.target,
            server=self._server,
            started=self._started,
            seconds=round(self.spent_s, 1),
            ended=ended,
            ended_by=self._ended_by,
            phase=settings.phase,
            by=search.by,
            goal=search.goal,
            slo_s=search.limits_s,
            budget_s=settings.budget_s,
            tolerance=search.tolerance,
            at_least=settings.at_least,
            answer=self._search.answer(),
            knee=findings.knee(steps, search.by),
            saturation=findings.saturation(steps, search.by),
            limit=findings.limiting_resource(steps),
            failures=tuple(self._failures.values()),
            wanted=settings.wanted,
            steps=tuple(steps),
        )

    def _exit_code(self) -> int:
        if self._interrupts:
            return self._interrupts.exit_code
        if self._code is not None:
            return self._code
        found, wanted = self._search.answer(), self._settings.at_least
        if wanted is not None:
            low, high = found.bounds
            if high is not None and high <= wanted:
                return exit_codes.FAIL
            return exit_codes.PASS if low is not None and low >= wanted else exit_codes.UNKNOWN
        return exit_codes.PASS if found.known else exit_codes.UNKNOWN

    async def run(self) -> CapacityResult:
        """Run steps; returns capacity.json. Raises LoadchaosError without a server or a first step."""
        self._write(self.result(ended=False))
        launch = self._profile.target.launch
        if launch is None or self._options.target is not None:
            return await self._steps()
        held = self._held_server(launch)
        self._options = replace(self._options, held=held)
        name = Path(launch.command[0]).name
        self._live(f"starting {name} at {held.url}")
        try:
            await held.start(launch.ready_within)
            took_s = self._campaign.begin_now()  # the budget is for the steps
            self._announce(f"{name} is healthy at {held.url} after {duration(took_s)}")
            return await self._steps()
        finally:
            await held.stop()

    def _held_server(self, launch: Launch) -> HeldServer:
        """Make the server of all steps. Its log is in the folder `server`, one folder for each start."""
        folder = self._campaign.folder / files.SERVER
        number = len(list(folder.glob("[0-9]*"))) + 1
        line = CommandLine(tuple(launch.command), dict(launch.env), parse_target(launch.url))
        return HeldServer(line, folder / f"{number:03}", limits=launch.limits.model_dump(exclude_none=True))

    async def _steps(self) -> CapacityResult:
        while True:
            left_s = self._settings.budget_s - self.spent_s - _AFTER_S
            step = self._choose(left_s)
            if step is None:
                break
            if left_s < _LEAST_STEP_S:
                self._note_budget(step)
                break
            if not await self._step(step, left_s):
                break
            self._write(self.result(ended=False))
        self._write(self.result(ended=True))
        return self._data

    def _choose(self, left_s: float) -> NextStep | None:
        """Choose the next step: one that can prove a load where a short one would leave no time for it."""
        step, proof = self._search.next(), self._search.proof()
        if step is None or not step.scout or proof is None:
            return step
        proof_s = step_plan(self._settings.search, proof).look_s + _AROUND_PROOF_S
        return proof if proof_s <= left_s < _SHORT_STEP_S + proof_s else step

    def _write(self, data: CapacityResult) -> None:
        self._data = data
        self._campaign.write(files.contents(data))
        self._output.publish(data)

    def _note_budget(self, step: NextStep) -> None:
        load = load_text(self._settings.search.by, step.load)
        left = describe_duration(max(0.0, self._settings.budget_s - self.spent_s))
        self._announce(
            f"{left} of the budget are left, too short for a step; the next one would have been {load} (--budget gives more)"
        )

    async def _step(self, chosen: NextStep, left_s: float) -> bool:
        """Run one step; False where the search has to end."""
        number = len(self._search.steps) + 1
        plan = step_plan(self._settings.search, chosen, left_s)
        folder = self._campaign.folder / files.STEPS / f"{number:02}"
        shutil.rmtree(folder, ignore_errors=True)  # of a step that was killed
        head = f"[step {number}] {load_text(self._settings.search.by, plan.load)}"
        self._live(f"{head}: starting")
        began = iso_utc()

        def show(progress: StepProgress) -> None:
            self._live(f"{head}: {progress.describe()}")
            current = CurrentStep(load=plan.load, requests=progress.requests, goodput=progress.goodput)
            self._output.publish(replace(self._data, current=current))

        watch, seed = _LiveWatch(plan, show), self._options.seed + number
        options = replace(self._options, out=folder, seed=seed, watch=watch, live=False, replay=True)
        try:
            result = await run_quietly(step_profile(self._profile, plan), options, self._interrupts, lambda _: None)
        except LoadchaosError as e:
            if not self._search.steps:
                raise
            self._end(e.exit_code, str(e))
            return False
        watch.finish()
        return self._fold(number, watch, result, began)

    def _fold(self, number: int, watch: StepWatch, result: Result, began: str) -> bool:
        """Keep the result of a step; False where the search has to end."""
        if self._interrupts:
            return False
        if self._server == ServerName():
            self._server = server_of(result.folder.path)
        if result.exit_code in exit_codes.BEFORE_LOAD or result.verdict is None:
            why = result.error or "the step could not be judged"
            self._end(result.exit_code, f"step {number}: {why}")
            return False
        missing = watch.missing_figure()
        if missing is not None:
            raise OptionError(
                f"--slo {missing}: no answer of the server had it (was it streamed, with more than one token?); use another "
                "limit, such as e2e"
            )
        step = watch.result()
        if not step.requests and result.error:
            self._end(result.exit_code, f"step {number}: {result.error}")
            return False
        run = str(result.folder.path.relative_to(self._campaign.folder))
        dead = self._note_failures(result, run)
        step = replace(step, run=run, began=began, ended=iso_utc())
        efficiency = result.verdict.efficiency
        warm = efficiency.warm_cache if efficiency is not None else None
        if step.status == "not_met":  # with a cold cache even less
            warm = None
        if dead is not None or warm:
            why = f"the server failed: {dead.id}" if dead is not None else str(warm)
            step = replace(step, status="undecided", leans=False, why=why)
        self._search.add(step)
        done = self._search.steps[-1] = replace(self._search.steps[-1], proved=(self._search.low, self._search.high))
        self._announce(f"[step {number}] {step_line(self._settings.search.by, done)}")
        if dead is not None:
            place = f" ({run}/{dead.incident})" if dead.incident else ""
            self._end(result.exit_code or exit_codes.FAIL, f"{dead.id}: {dead.title}{place}")
            return False
        if warm:
            self._end(exit_codes.UNKNOWN, f"step {number}: {warm}")
            return False
        return True

    def _note_failures(self, result: Result, run: str) -> SearchFailure | None:
        """Keep the failures of a step; returns one that ends the search."""
        dead = None
        for failure in counting_failures(result):
            incident = f"incidents/{failure.incident}" if failure.incident else None
            before = self._failures.get(failure.id) or SearchFailure(
                id=failure.id, title=failure.title, severity=failure.severity, steps=0, run=run, incident=incident
            )
            known = self._failures[failure.id] = replace(before, steps=before.steps + 1)
            if failure.severity in DEADLY_OR_HUNG:
                dead = dead or replace(known, incident=incident)
        return dead

    def _end(self, code: int, why: str) -> None:
        self._code, self._ended_by = code, Redactor().text(why)
