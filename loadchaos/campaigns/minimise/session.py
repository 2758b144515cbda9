"""One minimisation from the recorded run to repro/."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise import repro
from loadchaos.campaigns.minimise.candidate import Reduction, whole_of
from loadchaos.campaigns.minimise.candidate_session import CandidateSession, SearchResult
from loadchaos.campaigns.minimise.decider import LEAST_P, BudgetSpentError, Decision
from loadchaos.campaigns.minimise.minimiser import MOST_ROUNDS, RAISED_BELOW, Minimised, minimise, rounds_needed
from loadchaos.campaigns.minimise.validate import ScriptRuns, can_try, fewest_runs, run_script
from loadchaos.campaigns.replay.estimate import probability
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.core import exit_codes
from loadchaos.core.units import spent_time
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.report.formatting import percent, plural

_MOST_RESERVED = 0.3
"""Part of the budget that is kept for the runs of the script on fresh servers."""


class MinimiseSession(CandidateSession):
    """One minimisation, with its validated result."""

    def __init__(self, campaign: Campaign, trace: RequestTrace, plan: TryPlan, budget_s: float) -> None:
        super().__init__(campaign, trace, replace(plan, name="minimise"), budget_s)
        self._whole = whole_of(trace, plan.server, plan.rounds)
        self._trials.must_start = lambda candidate: candidate.flags == self._whole.flags
        self._smallest = self._whole.requests, len(self._whole.flags)
        self._written: repro.Reproducer | None = None
        self._end_s = time.monotonic() + budget_s
        self._decider.reserve_s = lambda: min(_MOST_RESERVED * budget_s, self._trials.validation_s)

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
        most = spent_time(self._trials.validation_s)
        self._print(
            f"repro.py is run on fresh servers, {fewest_runs(self._trials.ready_s)} times or more: about {most}"
        )
        best = await self._most_reliable(to_validate(result.kept))
        if best is None:
            return SearchResult(exit_codes.UNKNOWN, "UNKNOWN: no reproducer held on fresh servers")
        found, runs = best
        folder = self._campaign.folder / "repro"
        if found is not self._written:
            repro.write_script(found, folder)
        repro.finish(found, folder, runs, result, self._whole)
        return SearchResult(exit_codes.PASS, self._summary(found.candidate, runs, result))

    async def _most_reliable(self, candidates: Sequence[Reduction]) -> tuple[repro.Reproducer, ScriptRuns] | None:
        """The first candidate whose script reproduces in half of its runs. Where the budget ends before one is found, the
        most reliable so far; None where no script holds at all.
        """
        best: tuple[repro.Reproducer, ScriptRuns] | None = None
        for candidate in candidates:
            found, runs = await self._validated(candidate)
            tried, rounds = [(found, runs)], more_rounds(candidate.rounds, runs) if runs.share >= LEAST_P else 0
            if rounds > candidate.rounds and self._left_s > 0:
                self._print(f"repro.py is made to send its requests {rounds} times, as it reproduces too rarely")
                tried.append(await self._validated(replace(candidate, rounds=rounds)))
            best = max([*([best] if best else []), *tried], key=lambda one: one[1].share)
            holds = best[1].share >= LEAST_P
            if best[1].share >= RAISED_BELOW or (holds and self._left_s <= 0):
                return best
            self._print(
                f"repro.py with {plural(candidate.requests, 'request')} reproduces in less than "
                f"{(RAISED_BELOW if holds else LEAST_P) * 100:.0f} % of "
                f"the runs{': a larger candidate follows' if candidate is not candidates[-1] else ''}"
            )
        return best if best is not None and best[1].share >= LEAST_P else None

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    async def _validated(self, candidate: Reduction) -> tuple[repro.Reproducer, ScriptRuns]:
        server = candidate.server(self._plan.server)
        plan = replace(self._plan, server=server, rounds=candidate.rounds, name="repro")
        found = repro.Reproducer(candidate, plan, self._trials.version, self._trials.dialect)
        script, self._written = repro.write_script(found, self._campaign.folder / "repro"), found
        runs_folder = self._campaign.folder / "validation"
        shutil.rmtree(runs_folder, ignore_errors=True)
        known = self._decider.decisions().get(replace(candidate, as_script=True).key())
        searched = (known.successes, known.tries) if known is not None else (0, 0)
        return found, await run_script(script, plan, runs_folder, self._print, searched, self._end_s)

    def _summary(self, least: Reduction, runs: ScriptRuns, result: Minimised) -> str:
        whole = self._whole
        rounds = f" (sent up to {least.rounds} times)" if least.rounds > 1 else ""
        head = (
            f"MINIMISED {whole.requests:,} to {plural(least.requests, 'request')}{rounds}, {len(whole.flags)} to "
            f"{plural(len(least.flags), 'flag')}"
        )
        if smaller := least.resized(whole):
            head += f", on a smaller server: {', '.join(smaller)}"
        if (least.requests, len(least.flags)) == (whole.requests, len(whole.flags)):
            head = (
                f"NOT MINIMISED: none of {plural(whole.requests, 'request')} and {plural(len(whole.flags), 'flag')} could "
                f"be left out: {why_no_less(whole, result)}"
            )
        return (
            f"{head}; repro.py reproduces {runs.reproduced} of {runs.runs} "
            f"({probability(runs.reproduced, runs.runs)}); {self._worth(result.tries, 'repro')}"
        )

    def _report(self, decision: Decision) -> None:
        times = f"{decision.successes} of {decision.tries}"
        verdict = f"fails {times}" if decision.fails else f"does not fail ({times})"
        if decision.fails:
            self._smallest = decision.requests, decision.flags
        requests, flags = self._smallest
        # The decision itself is the newest step. Before the first failure p is only assumed.
        known = any(step.fails for step in self._decider.steps[:-1])
        rate = f"failure rate so far {percent(self._decider.p)}, " if known else ""
        self._print(
            f"{decision.step}: {plural(decision.requests, 'request')}, {plural(decision.flags, 'flag')}: {verdict}; "
            f"smallest: {plural(requests, 'request')}, "
            f"{plural(flags, 'flag')}; {rate}{plural(self._decider.tries, 'try', 'tries')}, "
            f"{spent_time(self._campaign.at_s)}"
        )


def why_no_less(whole: Reduction, result: Minimised) -> str:
    """Say what became of the smaller candidates."""
    steps = [step for *_, steps in result.levels for step in steps]
    smaller = [s for s in steps if (s.requests, s.flags) != (whole.requests, len(whole.flags))]
    failed = sum(step.fails for step in smaller)
    parts = [f"{plural(len(smaller) - failed, 'smaller candidate')} did not fail"] if len(smaller) > failed else []
    parts += [f"the script of {plural(failed, 'smaller candidate')} did not hold"] if failed else []
    parts += ["the budget was spent before all were tried"] if result.out_of_time else []
    return ", ".join(parts) or "nothing is smaller"


def to_validate(kept: Sequence[Reduction]) -> list[Reduction]:
    """Candidates whose script is run, the smallest first. A script may fail where the replay did not, as it has other
    timing. Then larger candidates follow, with growing distance: the 2nd, 4th, 8th ... from the end, and the first.
    """
    distances = [1, *(2**n for n in range(1, len(kept).bit_length()) if 2**n < len(kept)), len(kept)]
    return [kept[-n] for n in dict.fromkeys(distances)]


def more_rounds(rounds: int, runs: ScriptRuns) -> int:
    """Compute the rounds for p = 0.9 of a script that reproduces rarely."""
    if runs.share >= RAISED_BELOW:
        return rounds
    return max(rounds, min(MOST_ROUNDS, rounds_needed(rounds, runs.share)))
