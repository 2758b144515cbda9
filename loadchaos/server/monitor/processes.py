"""The processes of a server on this machine: which there are, in what state, what they use, and when they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from loadchaos.core.ledger.rows import Emit, ProcessEvent
from loadchaos.core.redact import Redactor

POLL_S = 0.25
SAMPLE_S = 1.0
_YOUNG_S = 10.0  # a server that has just come starts its processes one by one: look for them at every poll
_NAME_CHARS = 160
_STATES = {
    psutil.STATUS_RUNNING: "R", psutil.STATUS_SLEEPING: "S", psutil.STATUS_IDLE: "S", psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T", psutil.STATUS_TRACING_STOP: "T", psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DEAD: "Z",
}  # fmt: skip
Roles = Sequence[tuple[re.Pattern[str], str]]


@dataclass
class _Watched:
    """One process we know; `fd` is its pidfd, readable once it has ended, or None where there are none."""

    process: psutil.Process
    role: str
    name: str
    state: str
    fd: int | None = None
    cpu_s: float = 0.0
    rss_bytes: int = 0
    threads: int | None = None
    fds: int | None = None
    fd_limit: int | None = None


class ProcessWatch:
    """Watches the tree below one pid until cancelled; `run()` is the task, `set_pid` gives it another tree.

    A process is `gone` when it has ended, also while nobody has collected it (state Z): by pidfd at once where the
    system has it, else within 250 ms. Processes that outlive their parent stay watched.
    """

    def __init__(self, replica: str, roles: Roles, emit: Emit, redactor: Redactor) -> None:
        self._replica, self._roles, self._emit, self._redactor = replica, roles, emit, redactor
        self._root: int | None = None
        self._watched: dict[int, _Watched] = {}
        self._changed = asyncio.Event()
        self._set_at = 0.0

    def set_pid(self, pid: int | None) -> None:
        """From now on this process and all it starts; the ones known before stay until they are gone."""
        self._root = pid
        self._set_at = time.monotonic()
        self._changed.set()

    async def run(self) -> None:
        """Watch for ever."""
        sampled = 0.0
        try:
            while True:
                now = time.monotonic()
                full = now - sampled >= SAMPLE_S or self._changed.is_set()
                if full:
                    sampled = now
                    self._changed.clear()
                if full or now - self._set_at < _YOUNG_S:
                    await self._look_for_new()
                for watched in list(self._watched.values()):
                    self._look_at(watched, sample=full)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), POLL_S)
        finally:
            for watched in self._watched.values():
                self._forget_fd(watched)

    async def _look_for_new(self) -> None:
        if self._root is None:
            return
        # Reading /proc of a machine with many processes takes tens of milliseconds: not on the loop.
        for process, title in await asyncio.to_thread(_tree, self._root):
            known = self._watched.get(process.pid)
            if known is None:
                self._add(process, title)
            elif title != known.name or process != known.process:
                self._rename(known, process, title)

    def _add(self, process: psutil.Process, title: str) -> None:
        watched = _Watched(process, self._role(process.pid, title), title, "S")
        self._watched[process.pid] = watched
        watched.fd = self._open_fd(process.pid)
        if self._measure(watched):
            self._row(watched, "seen")
        else:
            self._gone(watched)

    def _rename(self, known: _Watched, process: psutil.Process, title: str) -> None:
        """A process that took another title (vLLM's do, once they are loaded), or another process with its pid."""
        if process != known.process:
            self._gone(known)
            self._add(process, title)
            return
        known.name = title
        role = self._role(process.pid, title)
        if role != known.role:
            known.role = role
            self._row(known, "seen")

    def _role(self, pid: int, title: str) -> str:
        for pattern, role in self._roles:
            if pattern.search(title):
                return role
        return "api_server" if pid == self._root else "other"

    def _look_at(self, watched: _Watched, *, sample: bool) -> None:
        before = watched.state
        if not self._measure(watched):
            self._gone(watched)
        elif sample or (watched.state != before and "T" in (watched.state, before)):
            if sample:
                watched.fds = _open_files(watched.process.pid)
                watched.fd_limit = _most_files(watched.process)
            self._row(watched, "sample")

    def _measure(self, watched: _Watched) -> bool:
        """Read it; False when it has ended."""
        try:
            with watched.process.oneshot():
                watched.state = _STATES.get(watched.process.status(), "S")
                if watched.state == "Z":
                    return False
                times = watched.process.cpu_times()
                watched.cpu_s = times.user + times.system
                watched.rss_bytes = watched.process.memory_info().rss
                watched.threads = watched.process.num_threads()
            return watched.process.is_running()
        except psutil.AccessDenied:
            return True  # somebody else's: it is there, more we may not know
        except psutil.Error:
            watched.state = "Z"
            return False

    def _gone(self, watched: _Watched) -> None:
        if self._watched.pop(watched.process.pid, None) is None:
            return
        self._forget_fd(watched)
        watched.state = "Z"
        self._row(watched, "gone")

    def _open_fd(self, pid: int) -> int | None:
        try:
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or it is gone already
            return None
        asyncio.get_running_loop().add_reader(fd, self._ended, pid)
        return fd

    def _ended(self, pid: int) -> None:
        watched = self._watched.get(pid)
        if watched is not None:
            self._gone(watched)

    def _forget_fd(self, watched: _Watched) -> None:
        if watched.fd is not None:
            asyncio.get_running_loop().remove_reader(watched.fd)
            os.close(watched.fd)
            watched.fd = None

    def _row(self, watched: _Watched, what: ProcessEvent) -> None:
        self._emit(
            {
                "row": "process",
                "at_ns": time.monotonic_ns(),
                "replica": self._replica,
                "pid": watched.process.pid,
                "role": watched.role,
                "what": what,
                "state": watched.state,
                "cpu_s": round(watched.cpu_s, 3),
                "rss_bytes": watched.rss_bytes,
                "threads": watched.threads,
                "fds": watched.fds,
                "fd_limit": watched.fd_limit,
                "name": self._redactor.text(watched.name),
            }
        )


def _open_files(pid: int) -> int | None:
    """How many file descriptors it has open; None where we may not know."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names are enough, and a tenth of the time of iterdir
    except OSError:
        return None


def _most_files(process: psutil.Process) -> int | None:
    """How many it may have open; None where we may not know."""
    try:
        return int(process.rlimit(psutil.RLIMIT_NOFILE)[0])
    except (AttributeError, OSError, psutil.Error):  # not Linux, or not ours to read
        return None


def _tree(root: int) -> list[tuple[psutil.Process, str]]:
    """The process and all below it, each with its title; empty when it is gone."""
    try:
        top = psutil.Process(root)
        processes = [top, *top.children(recursive=True)]
    except psutil.Error:
        return []
    found = []
    for process in processes:
        try:
            title = " ".join(process.cmdline()).strip() or process.name()
        except psutil.Error:  # gone in between, a zombie, or not ours to read
            continue
        found.append((process, title[:_NAME_CHARS]))
    return found
