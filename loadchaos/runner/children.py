"""The children of a run that may die without harm to it: Locust, the follower, and who makes finished parts Parquet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import Emit
from loadchaos.core.model import Row

LOCUSTFILE = Path(__file__).parents[1] / "load" / "locustfile.py"
_LOOK_S = 0.2


class ChildProcess:
    """A process in a session of its own: a Ctrl-C on the terminal is for `run`, which then ends its children in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Its pid, None before the start."""
        return self._process.pid if self._process else None

    @property
    def code(self) -> int | None:
        """Its exit code (negative: signal), None while it runs."""
        return self._process.returncode if self._process else None

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self, argv: Sequence[str], env: Mapping[str, str], output: Path | None) -> None:
        """Start it; its output goes to a file (LedgerError when there can be none), or to our terminal."""
        try:
            stream = output.open("ab") if output else None
        except OSError as e:
            raise LedgerError(f"{output}: cannot be written: {e.strerror}; {next_step(e)}") from e
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                # By the time it can ask who its parent is, that may have been killed.
                env={**os.environ, **env, "LOADCHAOS_PARENT": str(os.getpid())},
                start_new_session=True,
            )
        finally:
            if stream:
                stream.close()

    async def wait(self, limit_s: float | None = None) -> int | None:
        """Its exit code, or None when it still runs after `limit_s`."""
        if self._process is None:
            return None
        try:
            return await asyncio.wait_for(self._process.wait(), limit_s)
        except TimeoutError:
            return None

    async def end(self, grace_s: float) -> None:
        """SIGTERM, after `grace_s` SIGKILL to its whole session."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        if await self.wait(grace_s) is None:
            self.kill()
            await self.wait(5.0)

    def sweep(self) -> None:
        """SIGKILL to what one that was killed has left behind, and of one that has ended to what stands still."""
        if self.pid is None or self.code is None:
            return
        if self.code == 0:
            _end_what_stands_still(self.pid)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to its whole session; a stopped follower would not hear a SIGTERM."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


class LoadProcess(Protocol):
    """Who drives the load of one run: a Locust process of its own, or the web UI's."""

    @property
    def alive(self) -> bool:
        """Whether the load goes on."""
        ...

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        """Start the load."""
        ...

    def see(self, row: Row) -> None:
        """A row of a worker's."""
        ...

    def lost(self) -> str | None:
        """Why what is left of it has to stop, None while nothing is missing."""
        ...

    async def end(self, grace_s: float) -> None:
        """End it by force; it was told to stop before."""
        ...

    def ended(self) -> None:
        """Record that it is over."""
        ...

    def how_it_failed(self) -> str | None:
        """In words, None when it did what it should."""
        ...


class Locust(ChildProcess):
    """python -m locust with our locustfile; reads plan.json and facts.json of the run folder."""

    def __init__(self, folder: RunFolder, emit: Emit) -> None:
        super().__init__("locust")
        self._folder = folder
        self._emit = emit

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        """Start the load; `argv`: more of Locust's options; `variables` hold what plan.json only names."""
        argv = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", *argv]
        argv += ["--loglevel", "WARNING"]
        env = {**(variables or {}), "LOADCHAOS_PLAN": str(self._folder.plan)}
        await self.start(argv, env, self._folder.path / "locust.log")
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": "start", "pid": self.pid, "code": None})

    def see(self, row: Row) -> None:
        """Its process ends with its load: no row tells more."""

    def lost(self) -> str | None:
        """Locust itself notes what a lost worker leaves undone, and goes on."""
        return None

    def ended(self) -> None:
        """Record its exit, and end what a killed one has left behind: nobody would watch workers without a master."""
        self.sweep()
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": "exit", "pid": self.pid, "code": self.code})

    def how_it_failed(self) -> str | None:
        """In words, None when it did what it should or never ran."""
        if self.code in (None, 0):
            return None
        log = self._folder.path / "locust.log"
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with code {self.code}"
        words = _last_words(log)
        if not words and self.code == LedgerError.exit_code:  # it could not even write why
            words = ": its part of the ledger could not be written"
        return f"the load process {how} before the load was over ({log}){words}"


def _end_what_stands_still(group: int) -> None:
    """A worker that was stopped (SIGSTOP) does not see that its master has ended; all others do, and end by themselves."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group and process.status() == psutil.STATUS_STOPPED:
                process.kill()


def _last_words(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    told = [line for line in lines if line.startswith("loadchaos:")] or lines
    return f": {told[-1][:200]}" if told else ""


class FollowerProcess(ChildProcess):
    """python -m loadchaos.runner.follower: live view, exporter, incidents."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__("follower")
        self._folder = folder
        self._told_lost = False

    async def begin(
        self, exporter_port: int | None, variables: Mapping[str, str], *, live: bool, cockpit: bool
    ) -> None:
        """Start telling; the live view gets our terminal, the web UI its pages; `variables` hold what is secret."""
        argv = [sys.executable, "-m", "loadchaos.runner.follower", str(self._folder.path)]
        if exporter_port is not None:
            argv += ["--exporter-port", str(exporter_port)]
        if not live:
            argv += ["--no-live"]
        if cockpit:
            argv += ["--cockpit"]
        await self.start(argv, variables, None)

    async def finish(self, limit_s: float) -> None:
        """Let it tell the end; one that is stopped (a stopped terminal, Ctrl-Z) or slow is killed, nothing is lost."""
        deadline = time.monotonic() + limit_s
        while self.alive and time.monotonic() < deadline and not self._stopped():
            await self.wait(_LOOK_S)
        if self._stopped():
            self.kill()  # it would not hear a SIGTERM
        await self.end(1.0)

    def _stopped(self) -> bool:
        try:
            return psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.Error:
            return False

    def lost(self) -> str | None:
        """What to say, once, when it has ended in the middle of a run."""
        if self._told_lost or self.code is None:
            return None
        self._told_lost = True
        return (
            f"note: the live view has ended (code {self.code}), the run goes on: loadchaos follow {self._folder.path}"
        )


class Compaction(ChildProcess):
    """Now and then makes finished parts of the ledger Parquet; a kill at any moment loses nothing."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__("compaction")
        self._folder = folder
        self._starting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin soon, unless the last one still goes on; what hinders it is raised at the `end`."""
        self._starting = asyncio.create_task(self._begin())

    async def end(self, grace_s: float = 1.0) -> None:
        """See Child."""
        if self._starting is not None:
            await self._starting
        await super().end(grace_s)

    async def _begin(self) -> None:
        if not self.alive:
            argv = [sys.executable, "-m", "loadchaos.core.ledger.parquet", str(self._folder.path)]
            await self.start(argv, {}, self._folder.path / "locust.log")
