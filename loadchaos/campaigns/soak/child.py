"""Child process of a soak: start, watch and find its run. The child holds a lock file open. The lock is taken as long
as the child lives, whoever started it and whether or not its pid was recorded in time; it is free as soon as the child
has exited, for whatever reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.server.process.launcher import last_line

_LOCK = ".soak.run"
_OUTPUT = "soak-run.log"
_JUDGE_S = 3600.0


@dataclass(frozen=True)
class FinishedRun:
    """Folder of a run: name, pid, and once judged verdict, exit code and end."""

    name: str
    pid: int | None
    verdict: str | None
    exit_code: int | None
    ended: str | None = None


class SoakChild:
    """Current run of a soak, started by this soak or an earlier one. `command`: the command of loadchaos that it is."""

    def __init__(self, home: Path, command: str = "run") -> None:
        self._home, self._command = home, command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str], *, quiet: bool) -> int:
        """Start the command with these arguments, when quiet with output to soak-run.log. Returns its pid."""
        command = [*PYTHON_MODULE, "loadchaos", self._command, *arguments]
        self._process = None
        try:
            lock = os.open(self._home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise LedgerError(f"{self._home / _LOCK}: {e.strerror}; {next_step(e)}") from e
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.ExitStack() as stack:
                out = stack.enter_context((self._home / _OUTPUT).open("wb")) if quiet else None
                # A session of its own: a signal to the soak or its terminal does not end the run.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT if quiet else None,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        except OSError as e:
            raise LedgerError(
                f"the run could not be started: {e.strerror}; is this machine out of memory or processes?"
            ) from e
        finally:
            os.close(lock)
        return self._process.pid

    def alive(self) -> bool:
        """True while a run is going on; reaps a child that has exited."""
        if self._process is not None:
            return self._process.poll() is None
        try:
            lock = os.open(self._home / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def exit_code(self) -> int | None:
        """Exit code; None while it runs, when it was killed, and when another soak started it."""
        if self._process is None or self._process.poll() is None or self._process.returncode < 0:
            return None
        return self._process.returncode

    def end(self, pid: int | None, number: int) -> None:
        """Send a signal to the run while it is alive. Only then the pid is certain to be its own."""
        if pid is not None and self.alive():
            with contextlib.suppress(ProcessLookupError):  # it has exited meanwhile
                os.kill(pid, signal.Signals(number))

    def find(self, pid: int | None, started: str, name: str, known: Collection[str]) -> FinishedRun | None:
        """Find the run's folder by pid, else by name and time; None without one. `known`: those of earlier runs."""
        candidates = []
        for path in self._home.iterdir():
            if path.name in known or path.name.startswith(".") or not path.name.startswith(name):
                continue
            header = _header(path / "events.jsonl")
            if header is not None and (header[0] == pid if pid else _utc_ns(started) <= header[1]):
                candidates.append((header[1], path, header[0]))
        if not candidates:
            return None
        # With a pid the newest, as pids are reused; without one the first after the start was recorded.
        chosen = max(candidates) if pid else min(candidates)
        return _finished(chosen[1], chosen[2])

    def judge(self, folder: str) -> FinishedRun | None:
        command = [*PYTHON_MODULE, "loadchaos", "judge", str(self._home / folder)]
        with contextlib.suppress(subprocess.TimeoutExpired):  # it can still be judged by hand
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_JUDGE_S)
        return _finished(self._home / folder, None)

    def last_line(self) -> str:
        return last_line(self._home / _OUTPUT)


def _header(events: Path) -> tuple[int, int] | None:
    """(pid, UTC in ns) of a ledger's first row; None where it has none."""
    try:
        with events.open("rb") as f:
            row = orjson.loads(f.readline())
        return int(row["pid"]), int(row["utc_ns"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def _utc_ns(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1e9)


def _finished(path: Path, pid: int | None) -> FinishedRun:
    if (verdict := Verdict.read(RunFolder(path))) is None:
        return FinishedRun(path.name, pid, None, None)
    return FinishedRun(path.name, pid, verdict.verdict, verdict.exit_code, verdict.ended)
