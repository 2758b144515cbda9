"""Process of the web UI, which outlives runs; each Start and Stop is one load in it, directed by session.jsonl. It
writes Start into the session's commands.jsonl, all other presses into that of the current run.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import psutil

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import Emit, HeaderRow, LoadRow, SessionDetail, SessionEvent, SessionRow
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import Row
from loadchaos.load.locust_main import LOCUST, SESSION_VARIABLE, WEB_PASSWORD_VARIABLE, WEB_TOKEN_VARIABLE
from loadchaos.run.children import ChildProcess

_POLL_S = 0.5


@dataclass(frozen=True)
class WebUiSettings:
    """Address of the UI and its texts before the first run. `users` is the number in the profile."""

    host: str
    port: int
    profile: str
    about: str
    target: str
    users: int
    processes: int = 1
    password: str | None = None
    token: str = field(default_factory=secrets.token_urlsafe, repr=False)


class WebUiProcess(ChildProcess):
    """The Locust process with its web UI."""

    def __init__(self, home: Path, web: WebUiSettings) -> None:
        super().__init__()
        self.home, self.web = home, web
        self._workers: list[psutil.Process] = []
        self._gone: set[int] = set()
        self._polled_s = 0.0
        self._writer = Writer(home / "session.jsonl", "run")
        self._commands = Tail(home / "commands.jsonl")

    async def begin(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start the UI with further options. `variables` hold header values, which no file may hold."""
        web = self.web
        self.write(
            "web", profile=web.profile, about=web.about, target=web.target, users=web.users, processes=web.processes
        )
        argv = [*LOCUST, "--loglevel", "WARNING"]
        argv += ["--web-host", web.host, "--web-port", str(web.port), "--host", web.target]
        argv += ["--users", str(web.users), "--spawn-rate", str(web.users), *arguments]
        env = {**variables, SESSION_VARIABLE: str(self.home)}
        if web.password is not None:
            argv.append("--web-login")
            env[WEB_PASSWORD_VARIABLE] = web.password
        else:
            env[WEB_TOKEN_VARIABLE] = web.token
        await self.start(argv, env, self.log)

    def gone(self) -> set[int]:
        """Pids of load processes that have exited early. Locust continues with the others."""
        if self.web.processes > 1 and self.pid is not None and time.monotonic() - self._polled_s > _POLL_S:
            self._polled_s = time.monotonic()
            with contextlib.suppress(psutil.Error):
                if len(self._workers) < self.web.processes:
                    self._workers = psutil.Process(self.pid).children()
            self._gone.update(w.pid for w in self._workers if not _lives(w))
        return self._gone

    def lost_reason(self) -> str | None:
        if not self.alive:
            return f"the web UI's process exited with code {self.exit_code}; see {self.log}"
        if not (gone := self.gone()):
            return None
        n, processes = len(gone), self.web.processes
        return f"{n} of {processes} load processes exited early (pid {', '.join(map(str, gone))}); see {self.log}"

    @property
    def log(self) -> Path:
        return self.home / "locust.log"

    def write(self, what: SessionEvent, **detail: Unpack[SessionDetail]) -> None:
        row: SessionRow = {"row": "session", "at_ns": time.monotonic_ns(), "what": what, **detail}
        self._writer.write(row)

    def commands(self) -> Iterator[Row]:
        return (row for row in self._commands.rows() if row.get("row") == "command")

    def close(self) -> None:
        self._writer.close()


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class WebLoad(RowFold):
    """Load of one run in the process of the web UI. It ends when each worker's load has ended."""

    def __init__(self, ui: WebUiProcess, folder: RunFolder, emit: Emit) -> None:
        self._ui, self._folder, self._emit = ui, folder, emit
        self._ended: set[str] = set()
        self._pids: dict[str, int] = {}
        self._begun = False

    @property
    def pid(self) -> int | None:
        return self._ui.pid

    @property
    def alive(self) -> bool:
        gone = self._ui.gone()
        ended = len(self._ended | {f for f, pid in self._pids.items() if pid in gone})
        ended += len(gone - set(self._pids.values()))  # before their first row
        return self._begun and self._ui.alive and ended < self._ui.web.processes

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:  # noqa: ARG002 - both were given to the UI's process when it was started
        self._begun = True
        self._ui.write("load", folder=str(self._folder.path.resolve()))
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": "start", "pid": self.pid, "code": None})

    def on_header(self, row: HeaderRow) -> None:
        self._pids[str(row.get("file"))] = row["pid"]

    def on_load(self, row: LoadRow) -> None:
        if row["what"] == "end":
            self._ended.add(str(row.get("file")))

    def lost_reason(self) -> str | None:
        """Describe lost load processes; None without any. Locust would continue without their share of the load."""
        return self._ui.lost_reason() if self._begun and self._ui.gone() else None

    async def end(self, grace_s: float) -> None:
        """End the UI's process, as the load did not obey its stop command."""
        await self._ui.end(grace_s)

    def record_exit(self) -> None:
        """Write the row of the load's end. The process continues to run and may drive the next run."""
        self._ui.kill_leftovers()
        self._ui.write("load_over")
        code = 0 if self._ui.alive else self._ui.exit_code
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": "exit", "pid": self.pid, "code": code})

    def failure(self) -> str | None:
        return f"the load was cut short: {lost}" if self._begun and (lost := self._ui.lost_reason()) else None
