"""Starts a server alone, shows how it comes up, waits for its end or ours, and says why it did not come up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from loadchaos.core.errors import LoadchaosError, TargetError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.redact import Redactor
from loadchaos.server.discovery import calibrate, preflight
from loadchaos.server.discovery.client import DiscoveryClient
from loadchaos.server.process.launcher import Command, Exit, Launched, Typed, last_line, refuse_taken_port

_PROGRESS_S = 2.0
_DRAIN_S = 6.0


@dataclass(frozen=True)
class StartResult:
    """What a launch came to: the exit code of the command line, and the log to classify where the server is to blame."""

    code: int
    said: str
    log: Path | None = None


class StandaloneLaunch:
    """One server: `go` starts it and returns when it has ended, or at once when it is ready and `check` was asked for."""

    def __init__(self, what: Typed, folder: RunFolder, say: Callable[[str], None]) -> None:
        self._what, self._folder, self._say = what, folder, say
        self._redactor = Redactor.from_environment(os.environ)
        self._redactor.mapping(what.env)
        shown = self._redactor.argv(what.argv)
        self._events = Writer(folder.events, "launch")
        self._server = Launched(Command(what.argv, what.env), folder.path, self._events.write, shown)
        self._interrupted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def go(self, ready_within_s: float, *, check: bool) -> StartResult:
        """0 when it came up and `check` was asked for, 4 when it did not, 1 when it ended later by itself."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, functools.partial(self._hear, number))
        await self._server.start()
        try:
            return await self._stand(ready_within_s, check=check)
        finally:
            await (self._server.over() if self._server.exit.done() else self._server.stop())
            self._events.close()

    async def _stand(self, ready_within_s: float, *, check: bool) -> StartResult:
        begin = time.monotonic()
        progress = asyncio.create_task(self._tell_progress(begin))
        try:
            words = await self._unless_interrupted(self._until_ready(ready_within_s))
        except TargetError as e:
            await self._last_words()
            return StartResult(4, str(e), self._folder.server_log if self._server.pid is not None else None)
        finally:
            progress.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await progress
        if words is not None:
            self._server.ready()
            self._say(f"ready after {time.monotonic() - begin:.0f} s at {self._what.url}: {words}")
            if check:
                return StartResult(0, "ended again, as --check asks")
            self._say("Ctrl-C ends it")
            await _first(self._server.exit, self._interrupted)
        if self._interrupted.done():
            return StartResult(128 + self._interrupted.result(), "the server is ended")
        ended: Exit = self._server.exit.result()
        return StartResult(1, f"the server ended by itself: it {ended.reason}", self._folder.server_log)

    async def _until_ready(self, ready_within_s: float) -> str:
        """Healthy, and one real request answered; what the server is, in words. TargetError where that does not come."""
        async with httpx.AsyncClient(trust_env=False) as client:
            asker = DiscoveryClient(client, self._what.url, self._what.url)
            await preflight.wait_until_healthy(asker, ready_within_s, self._gone, lambda _: None)
            facts = await calibrate.identify_server(asker, calibrate.CalibrationRequest())
            await preflight.require_an_answer(asker, facts.model)
        length = f", context {facts.max_model_len}" if facts.max_model_len else ""
        return f"{facts.dialect} {facts.version or '(version unknown)'}, model {facts.model}{length}"

    async def _unless_interrupted(self, work_to_do: Awaitable[str]) -> str | None:
        work = asyncio.ensure_future(work_to_do)
        await _first(work, self._interrupted)
        if work.done():
            return work.result()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, LoadchaosError):
            await work
        return None

    async def _tell_progress(self, begin: float) -> None:
        """What the server says while it comes up: its newest line, where there is a new one."""
        told = ""
        while True:
            await asyncio.sleep(_PROGRESS_S)
            line = last_line(self._folder.server_log)
            if line and line != told:
                told = line
                self._say(f"{time.monotonic() - begin:4.0f} s  {line}")

    async def _last_words(self) -> None:
        """A server that fails says why in the seconds before its exit; one that is only slow is not waited for."""
        if "Error" in last_line(self._folder.server_log):
            await asyncio.wait([self._server.exit], timeout=_DRAIN_S)

    def _gone(self) -> str | None:
        return f"it {self._server.exit.result().reason}" if self._server.exit.done() else None

    def _hear(self, number: int) -> None:
        if not self._interrupted.done():
            self._say("ending the server")
            self._interrupted.set_result(number)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def launch_alone(
    what: Typed, folder: RunFolder, ready_within_s: float, *, check: bool, say: Callable[[str], None]
) -> StartResult:
    """Start it and stay with it. OptionError when its port is served by somebody else."""
    refuse_taken_port(what.url)
    say(f"starting {what.argv[0]} for {what.url}; its log is {folder.server_log}")
    return await StandaloneLaunch(what, folder, say).go(ready_within_s, check=check)
