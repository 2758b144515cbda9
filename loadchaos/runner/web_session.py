"""The web UI's process as a run sees it. It outlives runs: each Start...Stop is one load in it, told by session.jsonl.

The UI writes what was pressed: Start into the session's commands.jsonl, everything else into that of the run that goes on.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import psutil

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import Emit, SessionDetail, SessionEvent, SessionRow
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import Row
from loadchaos.runner.children import LOCUSTFILE, ChildProcess

SESSION_VARIABLE = "LOADCHAOS_SESSION"
_LOOK_S = 0.5
PASSWORD_VARIABLE = "LOADCHAOS_WEB_PASSWORD"  # noqa: S105 - the name of a variable


@dataclass(frozen=True)
class Web:
    """Where the UI listens, and what it shows before the first run. `users` are the profile's own."""

    host: str
    port: int
    profile: str
    about: str
    target: str
    users: int
    processes: int = 1
    password: str | None = None


class Ui(ChildProcess):
    """The Locust process with its web UI."""

    def __init__(self, home: Path, web: Web) -> None:
        super().__init__("web UI")
        self.home, self.web = home, web
        self._workers: list[psutil.Process] = []
        self._gone: set[int] = set()
        self._looked = 0.0
        self._writer = Writer(home / "session.jsonl", "run")
        self._commands = Tail(home / "commands.jsonl")

    async def begin(self, more: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start it with `more` of Locust's options; `variables` hold header values that no file may hold."""
        web = self.web
        self.tell(
            "web", profile=web.profile, about=web.about, target=web.target, users=web.users, processes=web.processes
        )
        argv = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--loglevel", "WARNING"]
        argv += ["--web-host", web.host, "--web-port", str(web.port), "--host", web.target]
        argv += ["--users", str(web.users), "--spawn-rate", str(web.users), *more]
        env = {**variables, SESSION_VARIABLE: str(self.home)}
        if web.password is not None:
            argv.append("--web-login")
            env[PASSWORD_VARIABLE] = web.password
        await self.start(argv, env, self.log)

    def gone(self) -> set[int]:
        """The pids of its load processes that have ended while it goes on: Locust goes on with those that are left."""
        if self.web.processes > 1 and self.pid is not None and time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            with contextlib.suppress(psutil.Error):
                if len(self._workers) < self.web.processes:
                    self._workers = psutil.Process(self.pid).children()
            self._gone.update(w.pid for w in self._workers if not _lives(w))
        return self._gone

    def lost(self) -> str | None:
        """In words, None while all its processes are there."""
        if not self.alive:
            return f"the web UI's process ended (code {self.code}); what it said is in {self.log}"
        if not (gone := self.gone()):
            return None
        n, several = len(gone), self.web.processes
        return f"{n} of {several} load processes ended in the middle (pid {', '.join(map(str, gone))}); see {self.log}"

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.home / "locust.log"

    def tell(self, what: SessionEvent, **detail: Unpack[SessionDetail]) -> None:
        """One row of session.jsonl: web, run, load, load_over, over."""
        row: SessionRow = {"row": "session", "at_ns": time.monotonic_ns(), "what": what, **detail}
        self._writer.write(row)

    def commands(self) -> Iterator[dict[str, Any]]:
        """What was pressed since the last call, outside of any run."""
        return (row for row in self._commands.rows() if row.get("row") == "command")

    def close(self) -> None:
        """No more rows."""
        self._writer.close()


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class UiLoad:
    """One run's load in the UI's process; see children.Load. It is over when each worker's load has ended."""

    def __init__(self, ui: Ui, folder: RunFolder, emit: Emit) -> None:
        self._ui, self._folder, self._emit = ui, folder, emit
        self._ended: set[str] = set()
        self._pids: dict[str, int] = {}
        self._begun = False

    @property
    def pid(self) -> int | None:
        """The UI's."""
        return self._ui.pid

    @property
    def alive(self) -> bool:
        """Whether the load goes on, and somebody drives it."""
        gone = self._ui.gone()
        over = len(self._ended | {f for f, pid in self._pids.items() if pid in gone})
        over += len(gone - set(self._pids.values()))  # before their first row
        return self._begun and self._ui.alive and over < self._ui.web.processes

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:  # noqa: ARG002 - both were given to the UI's process when it was started
        """plan.json is there: drive."""
        self._begun = True
        self._ui.tell("load", folder=str(self._folder.path.resolve()))
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": "start", "pid": self.pid, "code": None})

    def see(self, row: Row) -> None:
        """A row of a worker."""
        if row.get("row") == "header":
            self._pids[str(row.get("file"))] = int(row["pid"])
        if row.get("row") == "load" and row.get("what") == "end":
            self._ended.add(str(row.get("file")))

    def lost(self) -> str | None:
        """Locust would go on with those that are left, and nobody would drive the share of the others."""
        return self._ui.lost() if self._begun and self._ui.gone() else None

    async def end(self, grace_s: float) -> None:
        """The load did not hear its `stop`: nothing but the end of its process ends it."""
        await self._ui.end(grace_s)

    def ended(self) -> None:
        """Record that it is over; the process goes on and may drive the next run."""
        self._ui.sweep()
        self._ui.tell("load_over")
        code = 0 if self._ui.alive else self._ui.code
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": "exit", "pid": self.pid, "code": code})

    def how_it_failed(self) -> str | None:
        """In words, None while its processes live."""
        return f"the load broke off: {lost}" if self._begun and (lost := self._ui.lost()) else None
