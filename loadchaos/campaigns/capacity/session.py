"""Run the steps of a capacity search, one run each, and keep its files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from loadchaos.analysis.capacity import findings
from loadchaos.analysis.capacity.result import CapacityStep
from loadchaos.analysis.capacity.step_watch import StepProgress, StepWatch
from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.campaigns.capacity import files
from loadchaos.campaigns.capacity.search import CapacitySearch, NextStep, SearchSettings, answer
from loadchaos.campaigns.capacity.step_profile import step_plan, step_profile
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.model import Row
from loadchaos.core.redact import Redactor
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.core.units import figure
from loadchaos.profile.profile import Profile
from loadchaos.profile.target import Launch
from loadchaos.report.formatting import duration
from loadchaos.report.terminal.capacity import step_line
from loadchaos.run.finalize import Result
from loadchaos.run.held_server import HeldServer
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.options import Options
from loadchaos.run.run import run_quietly
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.process.launcher import CommandLine

_DEADLY = ("engine_death", "hang", "startup")
_LEAST_STEP_S = 20.0
_AFTER_S = 15.0
LEAST_BUDGET_S = _LEAST_STEP_S + _AFTER_S
_SHORT_STEP_S, _AROUND_PROOF_S = 16.0, 10.0
"""Time of a short step, and of the start and the warm-up of a long one."""
_LIVE_S = 1.0
_VERDICTS = {exit_codes.PASS: "pass", exit_codes.FAIL: "fail", exit_codes.UNKNOWN: "unknown"}


@dataclass(frozen=True)
class CapacitySettings:
    """Settings of a search, as capacity.json has them.

    Attributes:
        at_least: The result fails where the capacity is proved to be below.
        wanted: The command's own texts, for `--resume`.
        phase: The phase of the profile whose traffic is sent: its number, how many there are, and the traffic.
    """

    search: SearchSettings
    goal: float
    slo_s: Mapping[str, float]
    budget_s: float
    target: str
    at_least: float | None = None
    wanted: Mapping[str, Any] = field(default_factory=dict)
    phase: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchOutput:
    """Receivers of the reports of a search.

    Attributes:
        announce: gets one line for each finished step.
        live: gets the progress of the current step as a line, once a second.
        publish: gets capacity.json at each change; `current` in it is the step in progress.
    """

    announce: Callable[[str], None]
    live: Callable[[str], None]
    publish: Callable[[Mapping[str, Any]], None] = lambda _: None


class _LiveWatch:
    """A step's watch that also reports its progress, once a second."""

    def __init__(self, watch: StepWatch, live: Callable[[StepProgress], None]) -> None:
        self._watch, self._live = watch, live
        self._printed_s = 0.0

    def feed(self, row: Row) -> None:
        """Fold one row."""
        self._watch.feed(row)

    def reason(self) -> str | None:
        """Reason to end the load now; None to continue."""
        now_s = time.monotonic()
        if now_s - self._printed_s >= _LIVE_S:
            self._printed_s = now_s
            self._live(self._watch.progress())
        return self._watch.reason()


class CapacitySession:
    """Runs a search in a folder, from its last finished step on.

    A server that the profile launches, where the options name no target, is started once and stopped after the last
    step.
    """

    def __init__(
        self,
        profile: Profile,
        settings: CapacitySettings,
        options: Options,
        folder: Path,
        output: SearchOutput,
        interrupts: Interrupts,
    ) -> None:
        self._profile, self._settings, self._options, self._folder = profile, settings, options, folder
        self._announce, self._live, self._output = output.announce, output.live, output
        self._data: dict[str, Any] = {}
        self._search = CapacitySearch(settings.search)
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._before_s = 0.0
        self._begin_s = time.monotonic()
        self._server: dict[str, Any] = {}
        self._interrupts = interrupts
        self._ended_by = ""
        self._code: int | None = None
        self._failures: dict[str, dict[str, Any]] = {}

    # --- state --------------------------------------------------------------------------------------------------------

    def restore(self, data: Mapping[str, Any]) -> None:
        """Continue after the steps of an earlier capacity.json."""
        for step in data["steps"]:
            self._search.add(step)
        self._before_s, self._started = float(data["seconds"]), data["started"]
        self._server = dict(data["server"])
        self._failures = {f["id"]: dict(f) for f in data["failures"]}

    @property
    def spent_s(self) -> float:
        """Time of the search, with that before a resumption."""
        return self._before_s + time.monotonic() - self._begin_s

    def to_json(self, *, ended: bool) -> dict[str, Any]:
        """The contents of capacity.json."""
        steps, settings = self._search.steps, self._settings
        code = self._exit_code() if ended else None
        return {
            "schema": files.SCHEMA,
            "verdict": None if code is None else _VERDICTS.get(code, "error"),
            "exit_code": code,
            "target": settings.target, "server": self._server, "started": self._started,
            "seconds": round(self.spent_s, 1), "ended": ended, "ended_by": self._ended_by,
            "phase": dict(settings.phase), "by": settings.search.by, "goal": settings.goal, "slo_s": dict(settings.slo_s),
            "budget_s": settings.budget_s, "tolerance": settings.search.tolerance, "at_least": settings.at_least,
            "answer": answer(self._search, settings.search),
            "knee": to_json(findings.knee(steps, settings.search.by)),
            "saturation": to_json(findings.saturation(steps, settings.search.by)),
            "limit": to_json(findings.limiting_resource(steps)),
            "failures": list(self._failures.values()),
            "wanted": dict(settings.wanted),
            "steps": list(steps),
        }  # fmt: skip

    def _exit_code(self) -> int:
        """Exit code: that of an early end, else of the answer."""
        if self._interrupts:
            return self._interrupts.exit_code
        if self._code is not None:
            return self._code
        found, wanted = answer(self._search, self._settings.search), self._settings.at_least
        if wanted is not None:
            low, high = found["interval"]
            if high is not None and high <= wanted:
                return exit_codes.FAIL
            return exit_codes.PASS if low is not None and low >= wanted else exit_codes.UNKNOWN
        return exit_codes.PASS if found["known"] else exit_codes.UNKNOWN

    # --- the search ---------------------------------------------------------------------------------------------------

    async def run(self) -> dict[str, Any]:
        """Run steps until the search is done. Returns capacity.json.

        Raises LoadchaosError where the server does not start or the first step cannot be run.
        """
        self._write(self.to_json(ended=False))
        launch = self._profile.target.launch
        if launch is None or self._options.target is not None:
            return await self._steps()
        held = self._held_server(launch)
        self._options = replace(self._options, held=held)
        name = Path(launch.command[0]).name
        self._live(f"starting {name} at {held.url}")
        try:
            await held.start(launch.ready_within)
            self._announce(f"{name} is healthy at {held.url} after {duration(time.monotonic() - self._begin_s)}")
            self._begin_s = time.monotonic()  # the budget is for the steps
            return await self._steps()
        finally:
            await held.stop()

    def _held_server(self, launch: Launch) -> HeldServer:
        """Make the server of all steps. Its log is in the folder `server`, one folder for each start."""
        folder = self._folder / files.SERVER
        number = len(list(folder.glob("[0-9]*"))) + 1
        line = CommandLine(tuple(launch.command), dict(launch.env), parse_target(launch.url))
        return HeldServer(line, folder / f"{number:03}", limits=launch.limits.model_dump(exclude_none=True))

    async def _steps(self) -> dict[str, Any]:
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
            self._write(self.to_json(ended=False))
        data = self.to_json(ended=True)
        if self._interrupts:
            data |= {"ended": False, "verdict": None}
        self._write(data)
        return data

    def _choose(self, left_s: float) -> NextStep | None:
        """Choose the next step.

        It is a long step, which can prove a load, where a short step would leave no time for a long one.
        """
        step, proof = self._search.next(), self._search.proof()
        if step is None or not step.scout or proof is None:
            return step
        settings = self._settings
        proof_s = step_plan(settings.search.by, proof, settings.goal, settings.slo_s).look_s + _AROUND_PROOF_S
        return proof if proof_s <= left_s < _SHORT_STEP_S + proof_s else step

    def _write(self, data: dict[str, Any]) -> None:
        files.write(self._folder, data)
        self._data = data
        self._output.publish(data)

    def _note_budget(self, step: NextStep) -> None:
        load = f"{figure(step.load)} {'requests/s' if self._settings.search.by == 'rate' else 'users'}"
        self._announce(f"the budget is spent; the next step would have been {load} (--budget gives more)")

    async def _step(self, chosen: NextStep, left_s: float) -> bool:
        """Run one step; False where the search has to end."""
        number = len(self._search.steps) + 1
        settings = self._settings
        plan = step_plan(settings.search.by, chosen, settings.goal, settings.slo_s, left_s)
        watch = StepWatch(plan)
        folder = self._folder / files.STEPS / f"{number:02}"
        shutil.rmtree(folder, ignore_errors=True)  # of a step that was killed
        unit = "requests/s" if plan.by == "rate" else "users"
        head = f"[step {number}] {figure(plan.load)} {unit}"
        self._live(f"{head}: starting")
        began = _now()

        def show(progress: StepProgress) -> None:
            self._live(f"{head}: {progress.describe()}")
            current = {"load": plan.load, "requests": progress.requests, "goodput": progress.goodput}
            self._output.publish({**self._data, "current": current})

        live = _LiveWatch(watch, show)
        options = replace(
            self._options, out=folder, seed=self._options.seed + number, watch=live, live=False, replay=True
        )
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
        self._read_server(result)
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
        if watch.to_json()["requests"] == 0 and result.error:
            self._end(result.exit_code, f"step {number}: {result.error}")
            return False
        run = str(result.folder.path.relative_to(self._folder))
        dead = self._note_failures(result, run)
        step = {**watch.to_json(), "run": run, "began": began, "ended": _now()}
        efficiency = result.verdict.efficiency
        warm = efficiency.warm_cache if efficiency is not None else None
        if step["status"] == "not_met":  # with a cold cache even less
            warm = None
        if dead is not None or warm:
            why = f"the server failed: {dead['id']}" if dead is not None else str(warm)
            step |= {"status": "undecided", "leans": False, "why": why}
        self._search.add(step)
        self._search.steps[-1] = {**self._search.steps[-1], "proved": [self._search.low, self._search.high]}
        done = from_json(CapacityStep, self._search.steps[-1])
        self._announce(f"[step {number}] {step_line(self._settings.search.by, done)}")
        if dead is not None:
            place = f" ({run}/{dead['incident']})" if dead.get("incident") else ""
            self._end(result.exit_code or exit_codes.FAIL, f"{dead['id']}: {dead['title']}{place}")
            return False
        if warm:
            self._end(exit_codes.UNKNOWN, f"step {number}: {warm}")
            return False
        return True

    def _note_failures(self, result: Result, run: str) -> dict[str, Any] | None:
        """Keep the failures of a step; returns one that ends the search."""
        dead = None
        for failure in result.failures:
            if failure.accepted or failure.attribution == "expected":
                continue
            known = self._failures.setdefault(
                failure.id, {"id": failure.id, "title": failure.title, "severity": failure.severity,
                             "steps": 0, "run": run, "incident": _incident(failure)},
            )  # fmt: skip
            known["steps"] += 1
            if failure.severity in _DEADLY:
                dead = dead or {**known, "incident": _incident(failure)}
        return dead

    def _end(self, code: int, why: str) -> None:
        self._code, self._ended_by = code, Redactor().text(why)

    def _read_server(self, result: Result) -> None:
        """Take the server's name and version from the facts of a step."""
        if self._server:
            return
        try:
            facts = orjson.loads(result.folder.facts.read_bytes())
        except (OSError, ValueError):
            return
        self._server = {name: facts.get(name) for name in ("dialect", "version", "model")}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _incident(failure: FailureResult) -> str | None:
    """Folder of a failure's incident below the run folder."""
    return f"incidents/{failure.incident}" if failure.incident else None
