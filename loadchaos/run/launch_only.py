"""Start a server alone and say why it does not become ready."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from loadchaos.core import exit_codes
from loadchaos.core.errors import TargetError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.limits import LAST_LINES_S, SIGKILL_GRACE_OF_LAUNCH_COMMAND_S
from loadchaos.core.tls import TlsSettings
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.held_server import HeldServer
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.start_failure import StuckStart, explained
from loadchaos.server.discovery import calibrate, preflight
from loadchaos.server.discovery.client import CalibrationRequest
from loadchaos.server.process.launcher import CommandLine, last_line, refuse_taken_port

_PROGRESS_S = 2.0
_SILENT_S = 20.0  # a vLLM imports for that long before its first line


@dataclass(frozen=True)
class StartResult:
    """Result of a launch. `log` is the log to classify where the server failed."""

    exit_code: int
    text: str
    log: Path | None = None


class StandaloneLaunch:
    """Launch of one server without a run."""

    def __init__(
        self,
        server: CommandLine,
        folder: RunFolder,
        print_line: Callable[[str], None],
        tls: TlsSettings,
        interrupts: Interrupts,
    ) -> None:
        self._typed, self._folder, self._print, self._tls = server, folder, print_line, tls
        self._held = HeldServer(server, folder.path)
        self._server, self._interrupts = self._held.launched, interrupts

    async def run(self, ready_within_s: float, *, check: bool) -> StartResult:
        """Returns exit code 0 for a server that became ready (with `check`), 4 if it did not, 1 if it exited later, 128
        + signal.
        """
        refuse_taken_port(self._typed.url)
        self._print(f"starting {self._typed.argv[0]} for {self._typed.url}, log in {self._folder.server_log}")
        with self._interrupts.handled_by(self._interrupted_by):
            await self._server.start()
            try:
                return await self._wait(ready_within_s, check=check)
            finally:
                await self._held.stop(SIGKILL_GRACE_OF_LAUNCH_COMMAND_S)

    async def _wait(self, ready_within_s: float, *, check: bool) -> StartResult:
        begin_s = time.monotonic()
        progress = asyncio.create_task(self._print_progress(begin_s))
        try:
            ready = await self._unless_interrupted(self._until_ready(ready_within_s))
        except TargetError as e:
            log = self._folder.server_log
            if "Error" in last_line(log):  # it may log the cause in its last seconds
                await asyncio.wait([self._server.exit], timeout=LAST_LINES_S)
            if self._server.pid is None:
                return StartResult(exit_codes.TARGET_ERROR, str(e))
            return StartResult(exit_codes.TARGET_ERROR, explained(str(e), log), log)
        finally:
            progress.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await progress
        if ready:
            self._server.ready()
            self._print(f"ready after {time.monotonic() - begin_s:.0f} s at {self._typed.url}: {self._description}")
            if check:
                return StartResult(0, "the server became ready and was stopped (--check)")
            self._print("Ctrl-C stops the server")
            await self._unless_interrupted(self._ended())
        if self._interrupts:
            return StartResult(self._interrupts.exit_code, "the server was stopped")
        return StartResult(1, f"the server exited unexpectedly: {self._server.exit_reason}", self._folder.server_log)

    async def _unless_interrupted(self, step: Awaitable[None]) -> bool:
        return await self._interrupts.wait(step, lambda: None, lambda: False)

    async def _ended(self) -> None:
        await asyncio.wait([self._server.exit])

    async def _until_ready(self, ready_within_s: float) -> None:
        """Wait until the server answers one request, and describe it. Raises TargetError where it does not."""
        stuck = StuckStart(self._folder.server_log)
        async with discovery_client(self._typed.url, tls=self._tls.context()) as client:
            await preflight.wait_until_healthy(
                client, ready_within_s, lambda: self._server.exit_reason or stuck.reason()
            )
            facts = await calibrate.identify_server(client, CalibrationRequest())
            await preflight.require_first_answer(client, facts.model)
        length = f", context {facts.max_model_len} tokens" if facts.max_model_len else ""
        self._description = f"{facts.dialect} {facts.version or '(version unknown)'}, model {facts.model}{length}"

    async def _print_progress(self, begin_s: float) -> None:
        printed, printed_s = "", begin_s
        while True:
            await asyncio.sleep(_PROGRESS_S)
            line, now_s = last_line(self._folder.server_log), time.monotonic()
            if line and line != printed:
                printed, printed_s = line, now_s
                self._print(f"{now_s - begin_s:4.0f} s  {line}")
            elif now_s - printed_s >= _SILENT_S:
                printed_s = now_s
                self._print(f"{now_s - begin_s:4.0f} s  running, {'no new' if printed else 'no'} log line yet")

    def _interrupted_by(self, _: signal.Signals) -> None:
        if self._interrupts.count == 1:
            self._print("stopping the server")
