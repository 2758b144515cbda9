"""Child processes of a run: Locust, the follower, Parquet compaction. The run survives the loss of each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import psutil

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import Emit
from loadchaos.core.lifetime import PARENT_VARIABLE, PYTHON_MODULE
from loadchaos.load.locust_main import LOCUST

_LOOK_S = 0.2


class ChildProcess:
    """A process in a session of its own: a Ctrl-C on the terminal reaches only the run, which ends its children in
    order.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._ended_by_us = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """Exit code (negative: signal); None while it runs."""
        return self._process.returncode if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, argv: Sequence[str], env: Mapping[str, str], output: Path | None) -> None:
        """Start the process with `env` added to our variables; `output` None: our terminal. Raises LedgerError."""
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
                env={**os.environ, **env, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )
        finally:
            if stream:
                stream.close()

    async def wait(self, limit_s: float | None = None) -> int | None:
        """Wait for its exit code; None when it still runs after `limit_s`."""
        if self._process is None:
            return None
        try:
            async with asyncio.timeout(limit_s):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def end(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL to its whole session after `grace_s` seconds."""
        if self._process is None or self._process.returncode is not None:
            return
        self._ended_by_us = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        if await self.wait(grace_s) is None:
            self.kill()
            await self.wait(5.0)

    def kill_leftovers(self) -> None:
        """Kill its process group: after a crash every process, after a normal exit only stopped ones."""
        if self.pid is None or self.exit_code is None:
            return
        if self.exit_code == 0:
            _kill_stopped(self.pid)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to its whole session. A stopped process does not react to SIGTERM."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


class Locust(ChildProcess, RowFold):
    """Locust process of one run, with our locustfile. It reads plan.json and facts.json of the run folder."""

    def __init__(self, folder: RunFolder, emit: Emit) -> None:
        super().__init__()
        self._folder = folder
        self._emit = emit

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        """Start Locust with further options. `variables` hold values that plan.json only names."""
        argv = [*LOCUST, "--headless", "--only-summary", *argv]
        argv += ["--loglevel", "WARNING"]
        env = {**(variables or {}), "LOADCHAOS_PLAN": str(self._folder.plan)}
        await self.start(argv, env, self._folder.path / "locust.log")
        self._row("start")

    def _row(self, what: Literal["start", "exit"]) -> None:
        code = None if what == "start" else self.exit_code
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": what, "pid": self.pid, "code": code})

    def lost_reason(self) -> str | None:
        return None

    def record_exit(self) -> None:
        self.kill_leftovers()
        self._row("exit")

    def failure(self) -> str | None:
        if self.exit_code in (None, 0):
            return None
        log = self._folder.path / "locust.log"
        code = self.exit_code
        if self._ended_by_us:  # the last line of its log is no reason
            return f"the load process did not end by itself in time, so loadchaos ended it ({log})"
        ended = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        error = _last_error(log)
        if not error and code == LedgerError.exit_code:  # it could not even write why
            error = ": its part of the ledger could not be written"
        return f"the load process {ended} before the load was complete ({log}){error}"


class ReplayWorker(Locust):
    """Process of a replay. It waits for `begin` with everything imported, as many short runs follow one another."""

    _begun = False

    def failure(self) -> str | None:
        return super().failure() if self._begun else None

    async def warm_up(self, variables: Mapping[str, str]) -> None:
        argv = [*PYTHON_MODULE, "loadchaos.load.replay_worker"]
        env = {**variables, "LOADCHAOS_PLAN": str(self._folder.plan.resolve())}
        await self.start(argv, env, self._folder.path / "locust.log")

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:  # noqa: ARG002 - options of Locust
        self._begun = True
        if not self.alive:
            await self.warm_up(variables or {})
        (self._folder.path / "load.start").touch()
        self._row("start")


def _kill_stopped(group: int) -> None:
    """Kill stopped (SIGSTOP) processes of a group: they alone do not notice that their master has exited."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group and process.status() == psutil.STATUS_STOPPED:
                process.kill()


def _last_error(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line for line in lines if line.startswith("loadchaos:")] or lines
    return f": {errors[-1][:200]}" if errors else ""


class FollowerProcess(ChildProcess):
    """`python -m loadchaos.run.follower`: live view, exporter, incidents."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self._folder = folder
        self._exit_noticed = False

    async def begin(
        self, exporter_port: int | Literal["default"] | None, variables: Mapping[str, str], *, live: bool, cockpit: bool
    ) -> None:
        """Start the follower. `exporter_port` None: no exporter; `cockpit`: it makes the pages of the web UI's tabs."""
        argv = [*PYTHON_MODULE, "loadchaos.run.follower", str(self._folder.path)]
        if exporter_port is not None:
            argv += ["--exporter-port", str(exporter_port)]
        if not live:
            argv += ["--no-live"]
        if cockpit:
            argv += ["--cockpit"]
        await self.start(argv, variables, None)

    async def finish(self, limit_s: float) -> None:
        """Let it read to the end of the ledger. A stopped (Ctrl-Z) or slow follower is killed, which loses nothing."""
        deadline = time.monotonic() + limit_s
        while self.alive and time.monotonic() < deadline and not self._stopped():
            await self.wait(_LOOK_S)
        if self._stopped():
            self.kill()  # it would not react to SIGTERM
        await self.end(1.0)

    def _stopped(self) -> bool:
        try:
            return psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.Error:
            return False

    def exit_notice(self) -> str | None:
        if self._exit_noticed or self.exit_code is None:
            return None
        self._exit_noticed = True
        command = f"loadchaos follow {self._folder.path}"
        return (
            f"note: the live view has ended (exit code {self.exit_code}) and the run continues; show it with {command}"
        )


class Compaction(ChildProcess):
    """Process that makes finished parts of the ledger Parquet. Killing it loses nothing."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self._folder = folder
        self._starting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start it unless it still runs; an error of the start is raised by `end`."""
        self._starting = asyncio.create_task(self._begin())

    async def end(self, grace_s: float = 1.0) -> None:
        """End the process, as `ChildProcess.end`. Raises the error of a failed start."""
        if self._starting is not None:
            await self._starting
        await super().end(grace_s)

    async def _begin(self) -> None:
        if not self.alive:
            argv = [*PYTHON_MODULE, "loadchaos.core.ledger.parquet", str(self._folder.path)]
            await self.start(argv, {}, self._folder.path / "locust.log")
