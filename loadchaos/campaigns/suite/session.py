"""Run the profiles of a suite, one after the other. A run that fails, that cannot begin, or that finds the server dead
does not end the suite. A signal does: the run ends in order, and the suite with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.campaigns.campaign import Campaign, counting_failures
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.limits import BACK_WITHIN_S
from loadchaos.core.model import Facts, ServerName
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.core.units import iso_utc
from loadchaos.profile.profile import Profile
from loadchaos.report.html import suite_page
from loadchaos.report.suite_result import ProfileRow, State, SuiteFailure, SuiteResult
from loadchaos.run.finalize import Result
from loadchaos.run.options import Options
from loadchaos.run.run import run_quietly

_STILL_DOWN_S = 5.0
_MOST_FAILURES = 20


class SuiteRecord:
    """Results of a suite so far. Files are complete after each change, so that SIGKILL loses nothing that was finished."""

    def __init__(self, campaign: Campaign, target: str, facts: Facts) -> None:
        self.campaign, self._target, self._facts = campaign, target, facts
        self._started = iso_utc(timespec="seconds")
        self._rows: dict[str, ProfileRow] = {}

    def plan(self, name: str, about: str, reasons: Sequence[str]) -> None:
        state: State = "left out" if reasons else "waiting"
        self._rows[name] = ProfileRow(name=name, about=about, state=state, why=tuple(reasons))

    def restore(self, before: SuiteResult) -> None:
        """Keep what had finished in an earlier part of the suite. Raises OptionError for another server."""
        if before.target != self._target:
            raise OptionError(f"--resume: the suite was of {before.target}, not of {self._target}; start a new suite")
        done = {row.name: row for row in before.in_state("finished") if row.exit_code not in exit_codes.BY_SIGNAL}
        self._rows = {name: done.get(name, row) for name, row in self._rows.items()}
        self._started = before.started

    def is_finished(self, name: str) -> bool:
        return self._rows[name].state == "finished"

    def begin(self, name: str) -> ProfileRow:
        row = self._rows[name] = replace(self._rows[name], state="running")
        self.write()
        return row

    def end(self, row: ProfileRow) -> None:
        self._rows[row.name] = row
        self.write()

    def write(self, *, ended: bool = False) -> None:
        result = self.result(ended=ended)
        self.campaign.write({"suite.json": result, "suite.html": suite_page.render(result)})

    @property
    def exit_code(self) -> int:
        return exit_codes.worst([row.exit_code for row in self._rows.values() if row.exit_code is not None])

    def result(self, *, ended: bool) -> SuiteResult:
        return SuiteResult(
            schema=1,
            target=self._target,
            server=from_json(ServerName, to_json(self._facts)),
            started=self._started,
            ended=iso_utc(timespec="seconds") if ended else None,
            exit_code=self.exit_code if ended else None,
            verdict=exit_codes.verdict_of(self.exit_code) if ended else None,
            profiles=tuple(self._rows.values()),
        )


class SuiteSession:
    """The runs of a suite; each has a line before and after its own lines."""

    def __init__(self, record: SuiteRecord, options: Options) -> None:
        self._record, self._options = record, options
        self._interrupts, self._announce = record.campaign.interrupts, record.campaign.print_line
        self._print: Callable[[str], None] = lambda text: self._announce(f"  {text}")
        self._ready_within_s = options.wait_ready_s

    async def run(self, profiles: Sequence[Profile]) -> int:
        self._record.write()
        for number, profile in enumerate(profiles, 1):
            if self._record.is_finished(profile.name):
                continue
            self._announce(f"[{number}/{len(profiles)}] {profile.name}: {profile.about}")
            begin_s = time.monotonic()
            row = await self._run(profile, self._record.begin(profile.name), self._options.seed + number - 1)
            code = self._interrupts.exit_code if self._interrupts else row.exit_code
            row = replace(row, exit_code=code, seconds=round(time.monotonic() - begin_s, 1))
            self._record.end(row)
            self._announce(f"[{number}/{len(profiles)}] {profile.name}: {row.shown_verdict}{_named(row)}")
            if self._interrupts:
                break
            down = code == exit_codes.TARGET_ERROR
            self._ready_within_s = self._options.wait_ready_s or (_STILL_DOWN_S if down else BACK_WITHIN_S)
        self._record.write(ended=True)
        return self._record.exit_code

    async def _run(self, profile: Profile, row: ProfileRow, seed: int) -> ProfileRow:
        options = replace(self._options, out=self._record.campaign.folder, wait_ready_s=self._ready_within_s, seed=seed)
        try:
            return _finished(row, await run_quietly(profile, options, self._interrupts, self._print))
        except LoadchaosError as e:  # it cannot begin: others can
            verdict = exit_codes.verdict_of(e.exit_code)
            return replace(row, state="finished", exit_code=e.exit_code, verdict=verdict, error=str(e))


def _finished(row: ProfileRow, result: Result) -> ProfileRow:
    verdict = result.verdict
    checks = (*verdict.expectations, *verdict.checks) if verdict is not None else ()
    return replace(
        row,
        state="finished",
        exit_code=result.exit_code,
        verdict=exit_codes.verdict_of(result.exit_code),
        run=result.folder.path.name,
        error=result.error,
        requests=sum(result.outcomes.values()),
        worth=verdict.worth if verdict is not None else "",
        failures=tuple(from_json(SuiteFailure, to_json(f)) for f in counting_failures(result)[:_MOST_FAILURES]),
        unknown=tuple(_described(c) for c in checks if c.verdict == "unknown"),
        broken=tuple(_described(c) for c in checks if c.verdict == "fail"),
    )


def _described(check: CheckResult) -> str:
    return f"{check.name}: {check.actual} (expected {check.expected})"


def _named(row: ProfileRow) -> str:
    if row.failures:
        return f" ({', '.join(dict.fromkeys(f.id for f in row.failures))})"
    first = row.error or next(iter(row.unknown), "")
    return f" ({first})" if first else ""
