"""One minimisation from the recorded run to repro/."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise import repro
from loadchaos.campaigns.minimise.candidate import Reduction, whole_of
from loadchaos.campaigns.minimise.candidate_session import CandidateSession, SearchResult
from loadchaos.campaigns.minimise.decider import LEAST_P, BudgetSpentError, Decision
from loadchaos.campaigns.minimise.minimiser import MOST_ROUNDS, RAISED_BELOW, Minimised, minimise, rounds_needed
from loadchaos.campaigns.minimise.validate import ScriptRuns, can_try, run_script
from loadchaos.campaigns.replay.estimate import probability
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.core import exit_codes
from loadchaos.core.units import spent_time
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.report.formatting import plural


class MinimiseSession(CandidateSession):
    """One minimisation, with its validated result."""

    def __init__(self, campaign: Campaign, trace: RequestTrace, plan: TryPlan, budget_s: float) -> None:
        super().__init__(campaign, trace, replace(plan, name="minimise"), budget_s)
        self._whole = whole_of(trace, plan.server, plan.rounds)
        self._trials.must_start = lambda candidate: candidate.flags == self._whole.flags
        self._smallest = self._whole.requests, len(self._whole.flags)

    async def run(self) -> SearchResult:
        """Minimise, write repro/ and run it on fresh servers."""
        try:
            result = await minimise(self._whole, self._decider, scripts=can_try(self._plan.expected))
        except BudgetSpentError:
            text = "UNKNOWN: the budget was spent before the recorded requests failed again; give more with --budget"
            return SearchResult(exit_codes.UNKNOWN, text)
        finally:
            await self._trials.stop()
        if result is None:
            text = "NOT REPRODUCED: the recorded requests do not fail often enough to be minimised"
            return SearchResult(exit_codes.FAIL, text)
        if result.out_of_time:
            self._print("the budget is spent: the smallest candidate so far is validated")
        candidates = to_validate(result.kept)
        for candidate in candidates:
            runs = await self._validated(candidate, result)
            if runs is not None and (rounds := more_rounds(candidate.rounds, runs)) > candidate.rounds:
                self._print(f"repro.py is made to send its requests {rounds} times, as it reproduces too rarely")
                runs = await self._validated(replace(candidate, rounds=rounds), result)
            if runs is not None:
                return SearchResult(exit_codes.PASS, self._summary(candidate, runs, result.tries))
            self._print(
                f"repro.py with {plural(candidate.requests, 'request')} reproduces in less than {LEAST_P * 100:.0f} % of "
                f"the runs{': a larger candidate follows' if candidate is not candidates[-1] else ''}"
            )
        return SearchResult(exit_codes.UNKNOWN, "UNKNOWN: no reproducer held on fresh servers")

    async def _validated(self, candidate: Reduction, result: Minimised) -> ScriptRuns | None:
        server = candidate.server(self._plan.server)
        plan = replace(self._plan, server=server, rounds=candidate.rounds, name="repro")
        reproducer = repro.Reproducer(candidate, plan, self._trials.version, self._trials.dialect)
        folder = self._campaign.folder / "repro"
        script = repro.write_script(reproducer, folder)
        runs_folder = self._campaign.folder / "validation"
        shutil.rmtree(runs_folder, ignore_errors=True)
        runs = await run_script(script, server, self._plan.expected, runs_folder, self._print)
        if not runs.runs or runs.reproduced / runs.runs < LEAST_P:
            return None
        repro.finish(reproducer, folder, runs, result, self._whole)
        return runs

    def _summary(self, least: Reduction, runs: ScriptRuns, tries: int) -> str:
        whole = self._whole
        return (
            f"MINIMISED {whole.requests:,} to {plural(least.requests, 'request')}, {len(whole.flags)} to "
            f"{plural(len(least.flags), 'flag')}; repro.py reproduces {runs.reproduced} of {runs.runs} "
            f"({probability(runs.reproduced, runs.runs)}); {self._worth(tries, 'repro')}"
        )

    def _report(self, decision: Decision) -> None:
        verdict = "fails" if decision.fails else "does not fail"
        if decision.fails:
            self._smallest = decision.requests, decision.flags
        requests, flags = self._smallest
        # The decision itself is the newest step. Before the first failure p is only assumed.
        p = f"p = {self._decider.p:.2f}, " if any(step.fails for step in self._decider.steps[:-1]) else ""
        self._print(
            f"{decision.step}: {plural(decision.requests, 'request')}, {plural(decision.flags, 'flag')}: {verdict} "
            f"({decision.successes} of {decision.tries}); smallest: {plural(requests, 'request')}, "
            f"{plural(flags, 'flag')}; {p}{plural(self._decider.tries, 'try', 'tries')}, "
            f"{spent_time(self._campaign.at_s)}"
        )


def to_validate(kept: Sequence[Reduction]) -> list[Reduction]:
    """Candidates whose script is run, the smallest first. A script may fail where the replay did not, as it has other
    timing. Then larger candidates follow, with growing distance: the 2nd, 4th, 8th ... from the end, and the first.
    """
    distances = [1, *(2**n for n in range(1, len(kept).bit_length()) if 2**n < len(kept)), len(kept)]
    return [kept[-n] for n in dict.fromkeys(distances)]


def more_rounds(rounds: int, runs: ScriptRuns) -> int:
    """Compute the rounds for p = 0.9 of a script that reproduces rarely."""
    if runs.reproduced / runs.runs >= RAISED_BELOW:
        return rounds
    return max(rounds, min(MOST_ROUNDS, rounds_needed(rounds, runs.reproduced / runs.runs)))
