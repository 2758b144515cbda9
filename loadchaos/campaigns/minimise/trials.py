"""Try candidates on launched servers, shared while they survive."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from loadchaos.campaigns.campaign import Campaign, server_of
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.validate import QUICK_START_S, facts_of, fewest_runs, try_script
from loadchaos.campaigns.replay.one_try import TryPlan, TryResult, run_try
from loadchaos.campaigns.replay.refusals import why_unproved
from loadchaos.campaigns.replay.servers import ServerChoice, ServerPool
from loadchaos.core.errors import TargetError
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.held_server import HeldServer
from loadchaos.server.discovery.calibrate import identify_server
from loadchaos.server.discovery.client import CalibrationRequest

_KEPT_TRIES = 20
_USELESS_AGAIN = 2
_SLOWER = 3.0
_LEAST_SCRIPT_S = 300.0
_LEAST_READY_S = 30.0
_LEAST_READY_STRICT_S = 300.0
"""Without a flag such as --enforce-eager a server compiles for minutes when it starts."""


class Trials:
    """Tries of candidates. `strict`: a try proves nothing if the server died of another failure or answered less than
    half of the requests. `ready_s`: the first server needed so long to start. `fresh`: the next try needs a server that
    has served no try yet. `must_start`: tells for which candidates a failed start is an error. `why` the newest candidate
    could not be tried. The server told its `version` and `dialect` itself.
    """

    def __init__(self, plan: TryPlan, campaign: Campaign, dialect: str) -> None:
        folder = campaign.folder
        self._plan, self._folder, self._print = plan, folder, campaign.print_line
        self._pool = ServerPool(plan.server, folder / "servers")
        self.ready_s: float | None = None
        self._longest_s = self._newest_s = 0.0
        self._number = 0
        self._kills = plan.expected.severity != "request"
        self.strict = self.fresh = False
        self.must_start: Callable[[Reduction], bool] = lambda _: False
        self.server_of: Callable[[Reduction], ServerChoice] = lambda candidate: candidate.server(plan.server)
        self.why, self.version, self.dialect = "", "", dialect

    async def attempt(self, candidate: Reduction) -> bool | None:
        """Try a candidate once. True: the failure came. False: it did not. None: nothing was proved, and `why` says
        why. Raises TargetError where the server does not start and `must_start` holds.
        """
        server, known = self.server_of(candidate), self.must_start(candidate)
        least_s = _LEAST_READY_STRICT_S if self.strict else _LEAST_READY_S
        limit_s = patience(server.ready_within_s, self.ready_s, known_flags=known, least_s=least_s)
        server = replace(server, ready_within_s=limit_s)
        for _ in range(1 + _USELESS_AGAIN):
            try:
                held = await self._started(server, fresh=self.fresh or (candidate.as_script and self._starts_quickly))
            except TargetError as e:
                if known:
                    raise
                self.why = f"the server does not start: {e}"
                if not self.strict:
                    self._print(f"a server without these flags does not start: {str(e)[:160]}")
                return None
            try:
                result = await self._try(candidate, server, held)
            except TargetError as e:  # its first requests failed, before those of the candidate
                self.why = str(e)
                await self._pool.stop()
                continue
            if result.reproduced and candidate.as_script and not result.fresh:
                await self._pool.stop()  # an earlier try, or the reset after it, may have had a part in it
                self.why = "it fails on a used server only"
                continue
            if result.reproduced:
                self._kills = result.died
            if result.reproduced is not None:
                self.why = ""
                if self.strict:
                    trace, options = candidate.trace, self._plan.options
                    self.why = await why_unproved(result, trace, server, options, kills=self._kills)
                return None if self.why else result.reproduced
            self.why = result.why
        if not self.strict:
            self._print(f"a candidate cannot be tried: {self.why[:160]}")
        return None

    async def stop(self) -> None:
        await self._pool.stop()

    @property
    def validation_s(self) -> float:
        """Estimate how long the runs of a script take on fresh servers."""
        return fewest_runs(self.ready_s) * ((self.ready_s or 0.0) + self._newest_s)

    @property
    def _starts_quickly(self) -> bool:
        return self.ready_s is not None and self.ready_s < QUICK_START_S

    async def _started(self, server: ServerChoice, *, fresh: bool) -> HeldServer:
        begin_s, started = time.monotonic(), self._pool.started
        held = await self._pool.healthy_server(server)
        if fresh and held.runs:
            await self._pool.stop()
            held = await self._pool.healthy_server(server)
        if self.ready_s is None and self._pool.started != started:
            self.ready_s = time.monotonic() - begin_s
        if held.runs and held.alive:
            await held.reset_caches(self.dialect)
        return held

    async def _try(self, candidate: Reduction, server: ServerChoice, held: HeldServer) -> TryResult:
        if candidate.as_script:
            result = await self._try_script(candidate, server, held)
        else:
            plan = replace(self._plan, server=server, rounds=candidate.rounds)
            result = await run_try(candidate.trace, plan, self._try_folder(), held)
            self._learn(Path(result.folder))
        self._newest_s = result.seconds
        if result.died:
            await self._pool.stop()
        self._plan.interrupts.raise_if_any()
        return result

    async def _try_script(self, candidate: Reduction, server: ServerChoice, held: HeldServer) -> TryResult:
        if not self.version:
            await self._identify(held.url)
        facts = facts_of(server, self._plan.expected, self.dialect)
        limit_s = max(_LEAST_SCRIPT_S, _SLOWER * self._longest_s)
        folder = self._try_folder()
        await asyncio.to_thread(folder.mkdir, parents=True)
        result = await try_script(candidate, facts, self._plan.expected, folder, held, limit_s)
        if result.reproduced or not result.died:
            self._longest_s = max(self._longest_s, result.seconds)
        return result

    async def _identify(self, url: str) -> None:
        async with discovery_client(url) as client:
            try:
                facts = await identify_server(client, CalibrationRequest())
            except TargetError:
                return
        self.version, self.dialect = facts.version or "", facts.dialect

    def _try_folder(self) -> Path:
        self._number += 1
        old = self._folder / "tries" / f"{self._number - _KEPT_TRIES:04}"
        shutil.rmtree(old, ignore_errors=True)
        folder = self._folder / "tries" / f"{self._number:04}"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _learn(self, run: Path) -> None:
        server = server_of(run)
        self.version, self.dialect = server.version or "", server.dialect or self.dialect


def patience(limit_s: float, first_s: float | None, *, known_flags: bool, least_s: float = _LEAST_READY_S) -> float:
    """Limit for the start of a server whose first start took `first_s`. Flags that may be impossible get a shorter one.
    Flags that have worked keep theirs: a slow start ends the search.
    """
    if first_s is None or known_flags:
        return limit_s
    return min(limit_s, max(least_s, _SLOWER * first_s))
