"""Monitor a server's processes on this machine. Rows have state, CPU, memory, threads, files, and the end of each."""

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
from loadchaos.server.repeat import until_next_s

POLL_S = 0.25
"""Period of reads of the process tree."""
SAMPLE_S = 1.0
_YOUNG_S = 10.0  # a server that has just started adds its processes one by one: search at every poll
_FORK_S = 2.0  # a child that begins another program has its parent's title until then
_NAME_CHARS = 160
_STATES = {
    psutil.STATUS_RUNNING: "R", psutil.STATUS_SLEEPING: "S", psutil.STATUS_IDLE: "S", psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T", psutil.STATUS_TRACING_STOP: "T", psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DEAD: "Z",
}  # fmt: skip
Roles = Sequence[tuple[re.Pattern[str], str]]


@dataclass
class _KnownProcess:
    """One known process. `fd` is its pidfd, which is readable once it has ended, or None."""

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


class ProcessMonitor:
    """Monitors the process tree below one pid. A process is `gone` when it has ended, even if uncollected (state Z):
    known at once with pidfd, else within 250 ms. Processes that outlive their parent stay monitored.
    """

    def __init__(self, replica: str, roles: Roles, emit: Emit, redactor: Redactor, every_s: float = POLL_S) -> None:
        self._replica, self._roles, self._emit, self._redactor = replica, roles, emit, redactor
        self._every_s = every_s
        self._root: int | None = None
        self._known: dict[int, _KnownProcess] = {}
        self._changed = asyncio.Event()
        self._set_at = 0.0
        self._others: set[int] = set()

    @property
    def pid(self) -> int | None:
        """The root of the processes."""
        return self._root

    def set_pid(self, pid: int | None) -> None:
        """Monitor this process and its children. The ones known before stay until they are gone."""
        self._root, self._others = pid, set()
        self._set_at = time.monotonic()
        self._changed.set()

    async def run(self) -> None:
        sampled = 0.0
        try:
            while True:
                now = time.monotonic()
                full = now - sampled >= SAMPLE_S or self._changed.is_set()
                if full:
                    sampled = now
                    self._changed.clear()
                if full or now - self._set_at < _YOUNG_S:
                    await self._find_new()
                for known in list(self._known.values()):
                    self._update(known, sample=full)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(until_next_s(self._every_s)):
                        await self._changed.wait()
        finally:
            for known in self._known.values():
                self._forget_fd(known)

    async def _find_new(self) -> None:
        if self._root is None:
            return
        # Reading /proc of a machine with many processes takes tens of milliseconds: not on the loop.
        for process, title in await asyncio.to_thread(_tree, self._root, self._others):
            known = self._known.get(process.pid)
            if known is None:
                self._add(process, title)
            elif title != known.name or process != known.process:
                self._rename(known, process, title)

    def _add(self, process: psutil.Process, title: str) -> None:
        known = _KnownProcess(process, self._role(process.pid, title), title, "S")
        self._known[process.pid] = known
        known.fd = self._open_fd(process.pid)
        if self._measure(known):
            self._row(known, "seen")
        else:
            self._gone(known)

    def _rename(self, known: _KnownProcess, process: psutil.Process, title: str) -> None:
        """Handle a new title of a process, or a reused pid. vLLM sets titles after loading."""
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

    def _update(self, known: _KnownProcess, *, sample: bool) -> None:
        before = known.state
        if not self._measure(known):
            self._gone(known)
        elif sample or (known.state != before and "T" in (known.state, before)):
            if sample:
                known.fds = _open_file_count(known.process.pid)
                known.fd_limit = _open_file_limit(known.process)
            self._row(known, "sample")

    def _measure(self, known: _KnownProcess) -> bool:
        try:
            with known.process.oneshot():
                known.state = _STATES.get(known.process.status(), "S")
                if known.state == "Z":
                    return False
                times = known.process.cpu_times()
                known.cpu_s = times.user + times.system
                known.rss_bytes = known.process.memory_info().rss
                known.threads = known.process.num_threads()
            return known.process.is_running()
        except psutil.AccessDenied:
            return True  # another user's: it is there, but we may not read more
        except psutil.Error:
            known.state = "Z"
            return False

    def _gone(self, known: _KnownProcess) -> None:
        if self._known.pop(known.process.pid, None) is None:
            return
        self._forget_fd(known)
        known.state = "Z"
        self._row(known, "gone")

    def _open_fd(self, pid: int) -> int | None:
        try:
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or it is gone already
            return None
        asyncio.get_running_loop().add_reader(fd, self._ended, pid)
        return fd

    def _ended(self, pid: int) -> None:
        known = self._known.get(pid)
        if known is not None:
            self._gone(known)

    def _forget_fd(self, known: _KnownProcess) -> None:
        if known.fd is not None:
            asyncio.get_running_loop().remove_reader(known.fd)
            os.close(known.fd)
            known.fd = None

    def _row(self, known: _KnownProcess, what: ProcessEvent) -> None:
        self._emit(
            {
                "row": "process",
                "at_ns": time.monotonic_ns(),
                "replica": self._replica,
                "pid": known.process.pid,
                "role": known.role,
                "what": what,
                "state": known.state,
                "cpu_s": round(known.cpu_s, 3),
                "rss_bytes": known.rss_bytes,
                "threads": known.threads,
                "fds": known.fds,
                "fd_limit": known.fd_limit,
                "name": self._redactor.text(known.name),
            }
        )


def _open_file_count(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names are enough, and a tenth of the time of iterdir
    except OSError:
        return None


def _open_file_limit(process: psutil.Process) -> int | None:
    try:
        return int(process.rlimit(psutil.RLIMIT_NOFILE)[0])
    except (AttributeError, OSError, psutil.Error):  # not Linux, or not ours to read
        return None


def _tree(root: int, others: set[int]) -> list[tuple[psutil.Process, str]]:
    """The process and its descendants with their titles, but no young child that has its parent's: it may be about to
    begin another program. `others` keeps the pids that are no descendants, so that each is read once and not each second.
    """
    try:
        processes = [psutil.Process(root)]
    except psutil.Error:
        return []
    pids = set(psutil.pids())
    others &= pids
    children: dict[int, list[psutil.Process]] = {}
    for pid in sorted(pids - others - {root}):
        with contextlib.suppress(psutil.Error):
            child = psutil.Process(pid)
            children.setdefault(child.ppid(), []).append(child)
    for process in processes:
        processes += children.pop(process.pid, [])
    others |= pids.difference(process.pid for process in processes)
    found = []
    titles: dict[int, str] = {}
    for process in processes:
        try:
            title = " ".join(process.cmdline()).strip() or process.name()
            titles[process.pid] = title
            forked = process.pid != root and titles.get(process.ppid()) == title
            if forked and time.time() - process.create_time() < _FORK_S:
                continue
        except psutil.Error:  # gone in between, a zombie, or not ours to read
            continue
        found.append((process, title[:_NAME_CHARS]))
    return found
