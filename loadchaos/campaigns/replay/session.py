"""Replay a trace until enough is known; keep the state on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadchaos.campaigns.campaign import Campaign, SavedState
from loadchaos.campaigns.replay import estimate
from loadchaos.campaigns.replay.one_try import TryPlan, TryResult, run_try
from loadchaos.campaigns.replay.refusals import why_unproved
from loadchaos.campaigns.replay.resumed import settings_of
from loadchaos.campaigns.replay.servers import ServerChoice, ServerPool, without_port
from loadchaos.core import exit_codes
from loadchaos.core.units import spent_time
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.report.formatting import plural

STATE = "replay.json"
_SCHEMA = 2
_MOST_USELESS = 3


@dataclass(frozen=True)
class ReplayRequest:
    """`times`: tries; None: by a sequential test. `against`: server on which the failure should not come any more."""

    plan: TryPlan
    times: int | None = None
    against: ServerChoice | None = None
    dialect: str = "vllm"


@dataclass(frozen=True)
class ReplayState:
    """Tries so far, as replay.json has them."""

    tries: tuple[TryResult, ...] = ()
    against: tuple[TryResult, ...] = ()


def proved(tries: Sequence[TryResult]) -> list[bool]:
    return [t.reproduced for t in tries if t.reproduced is not None]


class ReplaySession:
    """Tries of one replay. `print_result` gets the lines of the result, the campaign all others."""

    def __init__(
        self, campaign: Campaign, trace: RequestTrace, request: ReplayRequest, print_result: Callable[[str], None]
    ) -> None:
        self._campaign, self._trace, self._request = campaign, trace, request
        self._print, self._print_result = campaign.print_line, print_result
        settings = settings_of(request.plan) | {
            "server": without_port(request.plan.server), "rounds (--rounds)": str(request.plan.rounds),
            "server of --against": without_port(request.against) if request.against is not None else "",
        }  # fmt: skip
        self._saved = SavedState(campaign, STATE, _SCHEMA, settings)
        state = self._saved.load(ReplayState)
        self._tries, self._against = list(state.tries), list(state.against)
        self._save()  # an interruption before the first try can be continued, too
        self._interrupts = request.plan.interrupts
        self._useless = 0
        self._noted = False
        self._kills: bool | None = None
        """Set for tries that have to prove a cure: True if the failure ended the server."""

    async def run(self) -> int:
        """Run the tries that are left. 0: reproduced (`against`: fixed), 1: not (still fails), 3: nothing was proved."""
        request = self._request
        before = await self._series(request.plan, self._tries, estimate.TryCount(request.times), "try")
        line = estimate.result_line(sum(before), len(before))
        self._print_result(line + self._others(self._tries))
        if self._interrupts:
            return self._interrupts.exit_code
        if request.against is None:
            return _exit_code(before)
        if not any(before):
            self._print("the failure did not come on the first server, so nothing can be said about the other one")
            return exit_codes.UNKNOWN
        return await self._run_against(request.against, before)

    async def _run_against(self, server: ServerChoice, before: list[bool]) -> int:
        plan = replace(self._request.plan, server=server)
        self._kills = any(t.died for t in self._tries if t.reproduced)
        needed, _ = estimate.tries_for_confidence(before)
        after = await self._series(
            plan, self._against, estimate.TryCount(needed, until_failure=True), "try against the other server"
        )
        self._print_result(estimate.against_line(sum(after), len(after), before) + self._others(self._against))
        if self._interrupts:
            return self._interrupts.exit_code
        if any(after):
            return exit_codes.FAIL
        return exit_codes.PASS if len(after) >= needed else exit_codes.UNKNOWN

    async def _series(self, plan: TryPlan, tries: list[TryResult], count: estimate.TryCount, what: str) -> list[bool]:
        for reproduced in proved(tries):
            count.add(reproduced)
        held = plan.share or self._kills is False  # it is asked after the try
        pool = ServerPool(plan.server, self._campaign.folder / "servers") if held else None
        try:
            while not count.done and not self._interrupts and self._useless < _MOST_USELESS:
                result = await self._one(plan, pool, len(self._tries) + len(self._against))
                tries.append(result)
                self._save()
                if result.reproduced is not None:
                    count.add(result.reproduced)
                self._useless = self._useless + 1 if result.reproduced is None else 0
                self._print(self._progress(tries, result, count, what))
        finally:
            if pool is not None:
                await pool.stop()
        return proved(tries)

    async def _one(self, plan: TryPlan, pool: ServerPool | None, number: int) -> TryResult:
        folder = self._campaign.folder / "tries" / f"{number + 1:03}"
        shutil.rmtree(folder, ignore_errors=True)  # of a try that was killed
        held = None
        if pool is not None and plan.server.launch is not None:
            held = await pool.healthy_server()
            kept = await held.reset_caches(self._request.dialect) if held.runs else []
            if kept and not self._noted:
                self._noted = True
                self._print(f"note: these caches could not be emptied between tries: {', '.join(kept)}")
        result = await run_try(self._trace, plan, folder, held)
        if self._kills is not None and (
            why := await why_unproved(result, self._trace, plan.server, plan.options, kills=self._kills)
        ):
            result = replace(result, reproduced=None, why=why)
        if pool is not None and (result.died or not plan.share):
            await pool.stop()
        return result

    def _progress(self, tries: Sequence[TryResult], result: TryResult, count: estimate.TryCount, what: str) -> str:
        if result.reproduced is None:
            shown = f"proved nothing ({result.why})"
        elif result.reproduced:
            shown = f"{result.failure} after {plural(result.sent, 'request')}"
        elif result.other:
            shown = f"another failure: {result.failure} after {plural(result.sent, 'request')}"
        else:
            shown = f"survived {plural(result.sent, 'request')}" + (
                f" (with {result.failure})" if result.failure else ""
            )
        left, exact = count.left()
        mean_s = sum(t.seconds for t in tries) / len(tries)
        eta = ""
        if left and not count.done:
            about = spent_time(left * mean_s)
            eta = f"; {left if exact else f'about {left}'} more, {about}"
        return f"{what} {len(tries)}: {shown}, {result.seconds:.0f} s{eta}"

    def _others(self, tries: Sequence[TryResult]) -> str:
        others = [str(t.failure) for t in tries if t.other]
        useless = [t for t in tries if t.reproduced is None]
        parts = [f"other deaths: {', '.join(others)}"] if others else []
        parts += [f"{len(useless)} tries proved nothing: {useless[-1].why}"] if useless else []
        return "".join(f"; {part}" for part in parts)

    def _save(self) -> None:
        self._saved.save(source=self._trace.header.source, tries=self._tries, against=self._against)


def _exit_code(results: Sequence[bool]) -> int:
    if not results:
        return exit_codes.UNKNOWN
    return exit_codes.PASS if any(results) else exit_codes.FAIL
