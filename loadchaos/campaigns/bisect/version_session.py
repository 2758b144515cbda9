"""One bisection over releases, from the recorded run to its results."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadchaos.campaigns.bisect.flag_session import share, table_cell
from loadchaos.campaigns.bisect.installs import InstallPlan, ReleaseInstaller
from loadchaos.campaigns.bisect.version_search import (
    BAD,
    SKIPPED,
    ReleaseResult,
    VersionFindings,
    VersionSearch,
)
from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise.candidate import Reduction, whole_of
from loadchaos.campaigns.minimise.candidate_session import CandidateSession, SearchResult, short_reason
from loadchaos.campaigns.minimise.decider import Decision
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.servers import ServerChoice, from_launch, redacted_command, result_redactor
from loadchaos.core import exit_codes
from loadchaos.core.typed_json import to_json
from loadchaos.core.units import spent_time
from loadchaos.profile.request_trace import RequestTrace


class VersionSession(CandidateSession):
    """One bisection over releases, with its installations and result files."""

    def __init__(
        self, campaign: Campaign, trace: RequestTrace, plan: TryPlan, budget_s: float, installs: InstallPlan
    ) -> None:
        server = replace(from_launch(installs.launch), ready_within_s=plan.server.ready_within_s)
        # Frames move between releases: the failure is known by its id alone.
        expected = replace(plan.expected, frame="")
        redactor = result_redactor(server)
        redactor.argv(shlex.split(installs.install))
        plan = replace(plan, server=server, expected=expected, name="bisect")
        super().__init__(campaign, trace, plan, budget_s, {"command of --install": redactor.text(installs.install)})
        self._redactor.argv(shlex.split(installs.install))
        self._installs = installs
        self._servers: dict[str, ServerChoice] = {}
        self._said: dict[str, str] = {}
        self._left: Callable[[], int] = lambda: 0
        self._trials.strict, self._trials.server_of = True, lambda candidate: self._servers[candidate.release]

    async def run(self, versions: Sequence[str], known_bad: str | None) -> SearchResult:
        installer = ReleaseInstaller(self._installs, self._print)
        search = VersionSearch(versions, self._decider, self._candidate, installer.prepare, known_bad)
        self._left = lambda: search.left
        try:
            found = await search.run()
        finally:
            await self._trials.stop()
            installer.close()
        self._write_result(self._readme(found, versions), self._data(found, versions))
        text = f"{summary(found, versions)}\n{self._worth(self._decider.tries)}"
        return SearchResult(_exit_code(found), self._redactor.text(text))

    async def _attempt(self, candidate: Reduction) -> bool | None:
        self._trials.fresh = not self._plan.share
        found = await super()._attempt(candidate)
        if found is not None:
            self._said[self._decider.step] = self._trials.version
        return found

    def _report(self, decision: Decision) -> None:
        left = self._left()
        eta = spent_time(left * self._campaign.at_s / len(self._decider.steps))
        self._print(f"{decision.step}: {_outcome(decision)}; at most {left} more releases, {eta}")

    def _candidate(self, version: str) -> Reduction:
        server = from_launch(self._installs.filled(self._installs.launch, version))
        self._servers[version] = replace(server, ready_within_s=self._plan.server.ready_within_s)
        return whole_of(self._trace, server, self._plan.rounds, version)

    def _data(self, found: VersionFindings, versions: Sequence[str]) -> dict[str, object]:
        return {
            "schema": 1, "failure": self._plan.expected.describe(), "finished": not found.out_of_time,
            "package": self._installs.name(), "versions": list(versions), "anchor": found.anchor or None,
            "first_bad": to_json(found.first_bad), "first_good": to_json(found.first_good),
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
