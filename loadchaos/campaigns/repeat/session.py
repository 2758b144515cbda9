"""Repeat a run until its figures are known well enough, or a number of times."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from loadchaos.campaigns.campaign import Campaign, saved
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.typed_json import from_json
from loadchaos.profile.profile import Profile
from loadchaos.report.html.trend import configured_server_of
from loadchaos.report.phrases import one_line
from loadchaos.report.repeat_result import FILE, RepeatedRun, RepeatResult, figures_of, name_of, shown
from loadchaos.run.finalize import Result
from loadchaos.run.options import Options
from loadchaos.run.run import run_quietly

_FEWEST, _MOST = 3, 20
"""Runs with `until=`."""
_MOST_VALUE = 1e15
_MOST_TIMES = 1000
_UNTIL = re.compile(r"until=(\d+(?:\.\d+)?)%")


@dataclass(frozen=True)
class Repeats:
    """Number of runs: `times`, or until the headline figures have an interval of at most `within` around their mean."""

    text: str
    times: int
    within: float | None = None


def parse(text: str) -> Repeats:
    """Parse `5` or `until=5%`. Raises OptionError."""
    if found := _UNTIL.fullmatch(text):
        if 0 < float(found[1]) < 100:
            return Repeats(text, _MOST, float(found[1]) / 100)
    elif text.isascii() and text.isdecimal() and 2 <= int(text) <= _MOST_TIMES:
        return Repeats(text, int(text))
    raise OptionError(f"--repeat {text!r}: a number of runs from 2 to 1000, or until=5% was expected")


class RepeatSession:
    """Runs with successive seeds, so that random prompts of one run are not in the prefix cache of the next."""

    def __init__(self, campaign: Campaign, profile: Profile, options: Options, repeats: Repeats) -> None:
        self._campaign, self._profile, self._options, self._repeats = campaign, profile, options, repeats
        self._print: Callable[[str], None] = lambda text: campaign.print_line(f"  {text}")
        self.result = self._result(())

    async def run(self) -> RepeatResult:
        for number in range(self._repeats.times):
            if not await self.run_one(number) or self._narrow():
                break
        return self.end()

    def end(self) -> RepeatResult:
        self.result = self._result(self.result.runs, self._exit_code())
        self._campaign.write({FILE: self.result})
        return self.result

    async def run_one(self, number: int) -> bool:
        """Do one run. Returns False where no other one can follow."""
        done = await self._run(self._options.seed + number)
        self.result = self._result((*self.result.runs, done))
        self._campaign.write({FILE: self.result})
        self._campaign.print_line(f"[{number + 1}] {_line(done)}")
        return not self._campaign.interrupts and done.exit_code not in (exit_codes.TARGET_ERROR, exit_codes.USER_ERROR)

    async def _run(self, seed: int) -> RepeatedRun:
        options = replace(self._options, out=self._campaign.folder, seed=seed)
        try:
            found = await run_quietly(self._profile, options, self._campaign.interrupts, self._print)
        except LoadchaosError as e:
            if not self.result.runs:
                raise  # nor would the others begin
            return RepeatedRun(run=None, seed=seed, exit_code=e.exit_code, why=str(e), figures={})
        return _finished(found, seed)

    def _narrow(self) -> bool:
        within, widest = self._repeats.within, self.result.widest()
        counted = sum(run.counts for run in self.result.runs)
        return within is not None and counted >= _FEWEST and widest is not None and (widest.relative or 0) <= within

    def _result(self, runs: tuple[RepeatedRun, ...], exit_code: int | None = None) -> RepeatResult:
        return RepeatResult(
            schema=1,
            profile=self._profile.name,
            asked=self._repeats.text,
            exit_code=exit_code,
            runs=runs,
        )

    def _exit_code(self) -> int:
        if self._campaign.interrupts:
            return self._campaign.interrupts.exit_code
        code = exit_codes.worst([run.exit_code for run in self.result.runs])
        wanted = self._repeats.within is not None and not self._narrow()
        return exit_codes.UNKNOWN if code == exit_codes.PASS and (wanted or self.result.changes()) else code


def _finished(found: Result, seed: int) -> RepeatedRun:
    verdict = found.verdict
    return RepeatedRun(
        run=found.folder.path.name,
        seed=seed,
        exit_code=found.exit_code,
        why=found.error or ("" if verdict is None or found.exit_code == exit_codes.PASS else one_line(verdict)),
        figures=figures_of(verdict) if verdict is not None else {},
        server=configured_server_of(found.folder, verdict) if verdict is not None else {},
    )


def _line(run: RepeatedRun) -> str:
    known = [name for name in ("requests_per_s", "ttft_p50", "e2e_p50") if name in run.figures]
    figures = ", ".join(f"{name_of(name)} {shown(name, run.figures[name])}" for name in known)
    return f"{exit_codes.shown_verdict(run.exit_code)}: {figures or run.why or 'no request was sent'}"


def read(folder: Path) -> RepeatResult:
    """Read repeat.json. Raises OptionError where it cannot be used."""
    found = from_json(RepeatResult, saved(folder / FILE, 1, "repeat the run"))
    if any(not 0 <= value < _MOST_VALUE for run in found.runs for value in run.figures.values()):
        raise OptionError(f"{folder}: {FILE} has figures that no run can have; repeat the run")
    return found
