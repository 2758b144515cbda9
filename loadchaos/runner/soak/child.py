"""The run as a child of its own: started, looked after, and found again by a soak that was killed and started anew.

The child holds a lock file open. As long as it lives the lock is taken, whoever started it and whether or not its pid
was written down in time; when it dies, however it dies, the lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import orjson

from loadchaos.core.errors import LedgerError, next_step

_LOCK = ".soak.run"
_OUTPUT = "soak-run.log"
_JUDGE_S = 3600.0
_TAIL_BYTES = 2000


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a run: its name, its process, and its verdict, exit code and end once it was judged."""

    name: str
    pid: int | None
    verdict: str | None
    exit_code: int | None
    ended: str | None = None


class SoakChild(Protocol):
    """The one run of a soak's folder, begun by us or by a soak before us."""

    def start(self, arguments: Sequence[str], *, quiet: bool) -> int:
        """Begin `loadchaos run ARGUMENTS` and give its pid. Its output goes to soak-run.log when quiet."""

    def alive(self) -> bool:
        """Whether a run goes on."""

    def exit_code(self) -> int | None:
        """Of a run that we began ourselves and that ended; None when it is another's or was killed."""

    def end(self, pid: int | None, number: int) -> None:
        """Send a signal to the run that goes on."""

    def find(self, pid: int | None, started: str, name: str, known: Collection[str]) -> FinishedRun | None:
        """The folder it made, if it came so far; `known` are folders of other nights."""

    def judge(self, folder: str) -> FinishedRun | None:
        """Judge what a killed run left."""

    def said(self) -> str:
        """The last line of its output."""


class Process:
    """Child processes as they really are."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str], *, quiet: bool) -> int:
        """As in Child. LedgerError when it cannot be begun."""
        command = [sys.executable, "-m", "loadchaos", "run", *arguments]
        self._process = None
        try:
            lock = os.open(self._home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise LedgerError(f"{self._home / _LOCK}: {e.strerror}; {next_step(e)}") from e
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.ExitStack() as stack:
                out = stack.enter_context((self._home / _OUTPUT).open("wb")) if quiet else None
                # A session of its own: what ends the soak or its terminal does not end the night's work.
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
                f"the run could not be begun: {e.strerror}; has this machine memory and processes left?"
            ) from e
        finally:
            os.close(lock)
        return self._process.pid

    def alive(self) -> bool:
        """As in Child; reaps what we began."""
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
        """As in Child."""
        if self._process is None or self._process.poll() is None or self._process.returncode < 0:
            return None
        return self._process.returncode

    def end(self, pid: int | None, number: int) -> None:
        """As in Child: only while it is alive, so the pid is still its own."""
        if pid is not None and self.alive():
            with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                os.kill(pid, signal.Signals(number))

    def find(self, pid: int | None, started: str, name: str, known: Collection[str]) -> FinishedRun | None:
        """As in Child: by the pid in the first row of its ledger, else by name and time."""
        candidates = []
        for path in self._home.iterdir():
            if path.name in known or path.name.startswith(".") or not path.name.startswith(name):
                continue
            header = _header(path / "events.jsonl")
            if header is not None and (header[0] == pid if pid else _utc_ns(started) <= header[1]):
                candidates.append((header[1], path, header[0]))
        if not candidates:
            return None
        # With a pid the newest: numbers come again. Without one the first since we meant to begin it.
        chosen = max(candidates) if pid else min(candidates)
        return _found(chosen[1], chosen[2])

    def judge(self, folder: str) -> FinishedRun | None:
        """As in Child."""
        command = [sys.executable, "-m", "loadchaos", "judge", str(self._home / folder)]
        with contextlib.suppress(subprocess.TimeoutExpired):  # it can still be judged by hand
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_JUDGE_S)
        return _found(self._home / folder, None)

    def said(self) -> str:
        """As in Child."""
        try:
            with (self._home / _OUTPUT).open("rb") as f:
                f.seek(max(0, f.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = [line for line in f.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            return ""
        return lines[-1].strip() if lines else ""


def _header(events: Path) -> tuple[int, int] | None:
    """(pid, UTC in ns) of the first row of a ledger."""
    try:
        with events.open("rb") as f:
            row = orjson.loads(f.readline())
        return int(row["pid"]), int(row["utc_ns"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def _utc_ns(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1e9)


def _found(path: Path, pid: int | None) -> FinishedRun:
    try:
        verdict = orjson.loads((path / "verdict.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        verdict = {}
    return FinishedRun(path.name, pid, verdict.get("verdict"), verdict.get("exit_code"), verdict.get("ended"))
