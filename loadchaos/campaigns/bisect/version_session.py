"""One bisection over releases, from the recorded run to its results."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadchaos.campaigns.bisect.flag_session import share, table_cell
from loadchaos.campaigns.bisect.installs import InstallPlan, ReleaseInstaller
from loadchaos.campaigns.bisect.result_files import STATE, short_reason, write_result
from loadchaos.campaigns.bisect.version_search import (
    BAD,
    SKIPPED,
    Boundary,
    ReleaseResult,
    VersionFindings,
    VersionSearch,
)
from loadchaos.campaigns.minimise.candidate import Reduction, split_command
from loadchaos.campaigns.minimise.decider import Decider, Decision
from loadchaos.campaigns.minimise.trials import Trials
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.resumed import settings_of
from loadchaos.campaigns.replay.servers import ServerChoice, from_launch, redacted_command, result_redactor
from loadchaos.core import exit_codes
from loadchaos.core.redact import Redactor
from loadchaos.core.units import spent_time
from loadchaos.profile.request_trace import RequestTrace


@dataclass(frozen=True)
class VersionResult:
    """Result of a bisection over releases."""

    exit_code: int
    findings: VersionFindings
    text: str


class VersionSession:
    """Installations, tries and result files of one bisection over releases."""

    def __init__(self, trace: RequestTrace, plan: TryPlan, installs: InstallPlan, folder: Path) -> None:
        self._trace, self._installs, self._folder = trace, installs, folder
        # Frames move between releases: the failure is known by its id alone.
        expected = replace(plan.expected, frame="")
        self._plan = replace(plan, expected=expected, name="bisect")
        self._servers: dict[str, ServerChoice] = {}
        self._said: dict[str, str] = {}
        self._begin_s = time.monotonic()

    async def run(
        self, versions: Sequence[str], known_bad: str | None, budget_s: float, print_line: Callable[[str], None]
    ) -> VersionResult:
        trials = Trials(self._plan, self._folder, self._trace.dialect, print_line)
        trials.strict, trials.server_of = True, lambda candidate: self._servers[candidate.release]

        async def attempt(candidate: Reduction) -> bool | None:
            trials.fresh = not self._plan.share
            found = await trials.attempt(candidate)
            decider.why = trials.why
            if found is not None:
                self._said[decider.step] = trials.version
            return found

        def report(decision: Decision) -> None:
            seconds = (time.monotonic() - self._begin_s) / len(decider.steps)
            eta = spent_time(search.left * seconds)
            print_line(f"{decision.step}: {_outcome(decision)}; at most {search.left} more releases, {eta}")

        decider = Decider(attempt, self._folder / STATE, report, budget_s, self._settings())
        installer = ReleaseInstaller(self._installs, print_line)
        search = VersionSearch(versions, decider, self._candidate, installer.prepare, known_bad)
        try:
            findings = await search.run()
        finally:
            await trials.stop()
            installer.close()
        return self._result(findings, versions, decider.tries)

    def _settings(self) -> dict[str, str]:
        """Settings of saved decisions; the environment is that of --launch."""
        server = from_launch(self._installs.launch)
        install = self._redactor().text(self._installs.install)
        return settings_of(replace(self._plan, server=server)) | {"command of --install": install}

    def _redactor(self) -> Redactor:
        hide = result_redactor(from_launch(self._installs.launch))
        hide.argv(shlex.split(self._installs.install))
        return hide

    def _candidate(self, version: str) -> Reduction:
        server = from_launch(self._installs.filled(self._installs.launch, version))
        assert server.launch is not None
        command, flags = split_command(server.launch.argv)
        candidate = Reduction(self._trace, command, flags, rounds=self._plan.rounds, release=version)
        self._servers[version] = replace(server, ready_within_s=self._plan.server.ready_within_s)
        return candidate

    def _result(self, found: VersionFindings, versions: Sequence[str], tries: int) -> VersionResult:
        code = _exit_code(found)
        folder = self._folder / "bisect"
        seconds = spent_time(time.monotonic() - self._begin_s)
        text = f"{summary(found, versions)}\n{tries} tries, {seconds}: {folder}"
        hide = self._redactor()
        write_result(folder, hide.text(self._readme(found, versions)), hide.data(self._data(found, versions)))
        return VersionResult(code, found, hide.text(text))

    def _data(self, found: VersionFindings, versions: Sequence[str]) -> dict[str, Any]:
        return {
            "schema": 1, "failure": self._plan.expected.describe(), "finished": not found.out_of_time,
            "package": self._installs.name(), "versions": list(versions), "anchor": found.anchor or None,
            "first_bad": _boundary_data(found.first_bad), "first_good": _boundary_data(found.first_good),
            "releases": [
                {
                    "version": r.version, "state": r.state, "server_version": self._said.get(r.version) or None,
                    "failed": r.decision.successes if r.decision else 0, "tries": r.decision.tries if r.decision else 0,
                    "confidence": round(r.confidence, 4) if r.state != SKIPPED else None, "skipped_because": r.why,
                }
                for r in found.releases
            ],
        }  # fmt: skip

    def _readme(self, found: VersionFindings, versions: Sequence[str]) -> str:
        rows = "".join(
            f"| {r.version} | {r.state} | {table_cell(_release(r))} | {self._said.get(r.version) or ''} |\n"
            for r in found.releases
        )
        launch = from_launch(self._installs.launch)
        lines = "".join(f"- {line}\n" for line in summary(found, versions).splitlines())
        return f"""# Releases of {self._installs.name()} with {self._plan.expected.describe()}

{lines}
Releases {versions[0]} to {versions[-1]}, {len(versions)} in all. Each is installed and started with

    {self._installs.install}
    {redacted_command(launch)}

| release | | tries | version of the server |
|---|---|---|---|
{rows or "| none was tried | | | |" + chr(10)}"""


def _exit_code(found: VersionFindings) -> int:
    if found.out_of_time:
        return exit_codes.UNKNOWN
    if found.anchor:
        return exit_codes.PASS
    started = any(r.state != SKIPPED for r in found.releases)
    return exit_codes.FAIL if started else exit_codes.TARGET_ERROR


def _boundary_data(boundary: Boundary | None) -> dict[str, Any] | None:
    if boundary is None:
        return None
    return {
        "good": boundary.good, "bad": boundary.bad, "confidence": round(boundary.confidence, 4),
        "untested": list(boundary.untested),
    }  # fmt: skip


def _outcome(decision: Decision) -> str:
    if decision.untriable:
        return f"skipped: {short_reason(decision.why)}"
    return f"{'bad' if decision.fails else 'good'} ({decision.successes} of {decision.tries} fail)"


def _release(result: ReleaseResult) -> str:
    if result.state == SKIPPED:
        return short_reason(result.why)
    assert result.decision is not None
    confidence = "" if result.state == BAD else f"; confidence {result.confidence * 100:.1f} %"
    return f"{share(result.decision.successes, result.decision.tries)}{confidence}"


def summary(found: VersionFindings, versions: Sequence[str]) -> str:
    lines = []
    if not found.anchor and not found.out_of_time:
        lines.append("NOT REPRODUCED: no release that was tried fails; name one that does with --bad VERSION")
    if (first := found.first_bad) is not None:
        lines.append(f"FIRST BAD {first.bad} (last good {first.good}; confidence {first.confidence * 100:.1f} %)")
    elif found.anchor and not found.out_of_time:
        oldest = min((versions.index(r.version) for r in found.releases if r.state == BAD), default=0)
        lines.append(
            f"FIRST BAD {versions[oldest]} or older: no older release of the range was seen without the failure"
        )
    if (first := found.first_good) is not None:
        lines.append(f"FIRST GOOD {first.good} (last bad {first.bad}; confidence {first.confidence * 100:.1f} %)")
    elif found.anchor and not found.out_of_time:
        newest = max((versions.index(r.version) for r in found.releases if r.state == BAD), default=0)
        lines.append(
            f"FIRST GOOD none: {versions[newest]} still fails, and no newer release of the range was seen without"
        )
    lines += [
        f"not tested between {boundary.good} and {boundary.bad}: {', '.join(boundary.untested)}"
        for boundary in (found.first_bad, found.first_good)
        if boundary is not None and boundary.untested
    ]
    lines += [f"skipped {r.version}: {short_reason(r.why)}" for r in found.releases if r.state == SKIPPED]
    if found.out_of_time:
        lines.append("the budget is spent: continue with --resume and a larger --budget")
    return "\n".join(lines)
