"""Launched server that several runs use one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from loadchaos.core import http_client
from loadchaos.core.errors import TargetError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import AnyRow, Emit
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.limits import SIGKILL_GRACE_OF_RUN_S
from loadchaos.core.redact import Redactor
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.start_failure import explained
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.discovery import preflight
from loadchaos.server.memory import ServerMemory
from loadchaos.server.process.launcher import CommandLine, LaunchCommand, LaunchedServer, last_line, refuse_taken_port

_RESET_S = 10.0


class HeldServer:
    """A launched server with a folder of its own. While a run is attached, its rows go to that run too."""

    def __init__(
        self,
        server: CommandLine,
        folder: Path,
        limits: Mapping[str, int] | None = None,
        memory: ServerMemory | None = None,
    ) -> None:
        """`memory`: what runs on it have learned, which later runs do not ask again; None: each run asks anew."""
        folder.mkdir(parents=True, exist_ok=True)
        files = RunFolder(folder)
        redactor = Redactor.of_launch(os.environ, server.env, server.argv)
        self.url, self.log, self.folder = server.url, files.server_log, folder
        self.runs, self.memory = 0, memory
        self._events = Writer(files.events, "launch")
        self._emit: Emit | None = None
        command = LaunchCommand(server.argv, server.env, limits=limits or {})
        self.launched = LaunchedServer(command, folder, self._feed, redactor.argv(list(server.argv)))

    def _feed(self, row: AnyRow) -> None:
        self._events.write(row)
        if self._emit is not None:
            self._emit(row)

    async def start(self, ready_within_s: float) -> None:
        """Start it and wait until it is healthy. Raises TargetError, and OptionError where its port is taken."""
        refuse_taken_port(self.url)
        await self.launched.start()
        async with discovery_client(self.url) as client:
            try:
                await preflight.wait_until_healthy(client, ready_within_s, lambda: self.launched.exit_reason)
            except TargetError as e:
                said = f"look at the log of the server: {self.log}"
                next_step = said if last_line(self.log) else "look at the program and the options of its launch command"
                raise TargetError(f"{explained(str(e), self.log)}; {next_step}") from e
        self.launched.ready()

    def attach(self, emit: Emit) -> None:
        self._emit = emit
        self.runs += 1
        self.launched.repeat_start(emit)

    def detach(self) -> None:
        self._emit = None

    @property
    def alive(self) -> bool:
        return self.launched.pid is not None and not self.launched.exit.done() and not self.launched.lost

    async def reset_caches(self, dialect: str) -> list[str]:
        """Empty the caches by its admin endpoints; returns the names of those that could not be emptied."""
        kept = []
        async with http_client.client() as http:
            for operation in (o for o in DIALECTS[dialect].admin.values() if o.empties_a_cache):
                status = 0
                with contextlib.suppress(*http_client.FAILURES):
                    url = f"{self.url}{operation.path}"
                    status = (await http_client.request(http, operation.method, url, limit_s=_RESET_S)).status
                if not 200 <= status < 300:
                    kept.append(operation.name)
        return kept

    async def stop(self, grace_s: float = SIGKILL_GRACE_OF_RUN_S) -> None:
        self._emit = None
        await self.launched.stop_or_record(grace_s)
        self._events.close()
