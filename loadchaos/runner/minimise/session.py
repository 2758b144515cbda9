"""One minimisation from the recorded run to repro/."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from loadchaos.core import exit_codes
from loadchaos.core.errors import TargetError
from loadchaos.core.stats import wilson
from loadchaos.core.units import describe_duration
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.runner.held_server import HeldServer
from loadchaos.runner.minimise import repro
from loadchaos.runner.minimise.candidate import Reduction, split_command
from loadchaos.runner.minimise.decider import LEAST_P, STATE, Decider, Decision
from loadchaos.runner.minimise.minimiser import MOST_ROUNDS, RAISED_BELOW, Minimised, minimise, rounds_needed
from loadchaos.runner.minimise.validate import ScriptRuns, run_script
from loadchaos.runner.replay.one_try import TryPlan, TryResult, run_try
from loadchaos.runner.replay.servers import ServerChoice, ServerPool

_KEPT_TRIES = 20
_USELESS_AGAIN = 2
_SLOWER = 3.0
_LEAST_READY_S = 30.0


@dataclass(frozen=True)
class MinimiseResult:
    """Result of a minimisation.

    `script` is None where no reproducer was validated.
    """

    exit_code: int
    result: Minimised | None
    whole: Reduction
    script: Path | None = None
    runs: ScriptRuns | None = None


class MinimiseSession:
    """Tries, decisions and the validated result of one minimisation."""

    def __init__(
        self, trace: RequestTrace, plan: TryPlan, folder: Path, budget_s: float, print_line: Callable[[str], None]
    ) -> None:
        assert plan.server.launch is not None
        self._plan, self._folder, self._print = plan, folder, print_line
        self._whole = Reduction(trace, *split_command(plan.server.launch.argv), rounds=plan.rounds)
        self._begin_s = time.monotonic()
        self._pool = ServerPool(plan.server, folder / "servers")
        self._ready_s: float | None = None
        self._number = 0
        self._best = self._whole
        self._dialect, self._version = str(trace.header.server.get("dialect") or "vllm"), ""
        self._decider = Decider(self._attempt, folder / STATE, self._report, budget_s)

    async def run(self) -> MinimiseResult:
        """Minimise, write repro/ and run it on fresh servers."""
        try:
            result = await minimise(self._whole, self._decider)
        finally:
            await self._pool.stop()
        if result is None:
            return MinimiseResult(exit_codes.FAIL, None, self._whole)
        if result.out_of_time:
            self._print("the budget is spent: the smallest candidate so far is validated")
        for candidate in reversed(result.kept):
            found = await self._validated(candidate, result)
            if found is not None and (rounds := more_rounds(candidate.rounds, found.runs)) > candidate.rounds:
                self._print(f"repro.py is made to send its requests {rounds} times, as it reproduces too rarely")
                raised = replace(candidate, rounds=rounds)
                found = await self._validated(raised, replace(result, candidate=raised))
            if found is not None:
                return found
            self._print(
                f"repro.py reproduces in less than {LEAST_P * 100:.0f} % of the runs: an earlier candidate follows"
            )
        return MinimiseResult(exit_codes.UNKNOWN, result, self._whole)

    async def _validated(self, candidate: Reduction, result: Minimised) -> MinimiseResult | None:
        server = candidate.server(self._plan.server)
        plan = replace(self._plan, server=server, rounds=candidate.rounds, name="repro")
        reproducer = repro.Reproducer(candidate, server, plan, self._version, self._dialect)
        folder = self._folder / "repro"
        script = repro.write_script(reproducer, folder)
        runs_folder = self._folder / "validation"
        shutil.rmtree(runs_folder, ignore_errors=True)
        runs = await run_script(script, server, self._plan.expected, runs_folder, self._print)
        if not runs.runs or runs.reproduced / runs.runs < LEAST_P:
            return None
        repro.finish(reproducer, folder, runs, result, self._whole)
        return MinimiseResult(exit_codes.PASS, result, self._whole, script, runs)

    async def _attempt(self, candidate: Reduction) -> bool | None:
        server = candidate.server(self._plan.server)
        known = candidate.flags == self._whole.flags
        server = replace(server, ready_within_s=patience(server.ready_within_s, self._ready_s, known_flags=known))
        why = ""
        for _ in range(1 + _USELESS_AGAIN):
            try:
                held = await self._started(server)
            except TargetError as e:
                if known:
                    raise
                self._print(f"a server without these flags does not start: {str(e)[:160]}")
                return None
            try:
                result = await self._try(candidate, server, held)
            except TargetError as e:  # its first requests failed, before those of the candidate
                why = str(e)
                await self._pool.stop()
                continue
            if result.reproduced is not None:
                if result.reproduced:
                    self._best = candidate
                return result.reproduced
            why = result.why
        self._print(f"a candidate cannot be tried: {why[:160]}")
        return None

    async def _started(self, server: ServerChoice) -> HeldServer:
        """Healthy server with empty caches."""
        begin_s, started = time.monotonic(), self._pool.started
        held = await self._pool.healthy_server(server)
        if self._ready_s is None and self._pool.started != started:
            self._ready_s = time.monotonic() - begin_s
        if held.runs and held.alive:
            await held.reset_caches(self._dialect)
        return held

    async def _try(self, candidate: Reduction, server: ServerChoice, held: HeldServer) -> TryResult:
        plan = replace(self._plan, server=server, rounds=candidate.rounds, name="minimise")
        result = await run_try(candidate.trace, plan, self._try_folder(), held)
        self._learn(Path(result.folder))
        if result.died:
            await self._pool.stop()
        if result.why == "it was interrupted":
            raise KeyboardInterrupt
        return result

    def _try_folder(self) -> Path:
        """Folder of the next try; old ones are removed."""
        self._number += 1
        old = self._folder / "tries" / f"{self._number - _KEPT_TRIES:04}"
        shutil.rmtree(old, ignore_errors=True)
        folder = self._folder / "tries" / f"{self._number:04}"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _learn(self, run: Path) -> None:
        """Read dialect and version of the server, once."""
        if self._version:
            return
        try:
            facts = json.loads((run / "facts.json").read_bytes())
        except (OSError, ValueError):
            return
        self._version, self._dialect = str(facts.get("version") or ""), str(facts.get("dialect") or self._dialect)

    def _report(self, decision: Decision) -> None:
        verdict = "fails" if decision.fails else "does not fail"
        best, elapsed = self._best, describe_duration(max(1, round(time.monotonic() - self._begin_s)))
        self._print(
            f"{decision.step}: {_plural(decision.requests, 'request')}, {_plural(decision.flags, 'flag')}: {verdict} "
            f"({decision.successes} of {decision.tries}); smallest: {_plural(best.requests, 'request')}, "
            f"{_plural(len(best.flags), 'flag')}; {_plural(self._decider.tries, 'try', 'tries')}, {elapsed}"
        )


def patience(limit_s: float, first_s: float | None, *, known_flags: bool) -> float:
    """Limit for the start of a server whose first start took `first_s`.

    Flags that may be impossible get a shorter one. Flags that have worked keep theirs: a slow start ends the minimisation.
    """
    if first_s is None or known_flags:
        return limit_s
    return min(limit_s, max(_LEAST_READY_S, _SLOWER * first_s))


def more_rounds(rounds: int, runs: ScriptRuns | None) -> int:
    """Compute the rounds for p = 0.9 of a script that reproduces rarely."""
    if runs is None or not runs.runs or runs.reproduced / runs.runs >= RAISED_BELOW:
        return rounds
    return max(rounds, min(MOST_ROUNDS, rounds_needed(rounds, runs.reproduced / runs.runs)))


def _plural(n: int, noun: str, more: str = "") -> str:
    return f"{n:,} {noun if n == 1 else more or noun + 's'}"


def summary(found: MinimiseResult, seconds: float) -> str:
    """Describe the result in one line."""
    whole, runs = found.whole, found.runs
    if found.result is None:
        return "NOT REPRODUCED: the recorded requests do not fail often enough to be minimised"
    least = found.result.candidate
    if runs is None or found.script is None:
        return "UNKNOWN: no reproducer held on fresh servers"
    low, high = wilson(runs.reproduced, runs.runs)
    return (
        f"MINIMISED {whole.requests:,} to {_plural(least.requests, 'request')}, {len(whole.flags)} to "
        f"{_plural(len(least.flags), 'flag')}; repro.py reproduces {runs.reproduced} of {runs.runs} (p = "
        f"{runs.reproduced / runs.runs:.2f}, 95 % CI {low:.2f} to {high:.2f}); {found.result.tries} tries, "
        f"{describe_duration(max(1, round(seconds)))}: {found.script.parent}"
    )
