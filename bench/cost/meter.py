"""Run one trial: server and contender on a core each, CPU in a window.

Every contender is measured in the same way: the server's counters say how far the load is, and /proc says how much
CPU time the contender's processes have used by then. CPU time before the window (start, imports) and after it is left
out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.server import Counters, LoadServer, Pace

LOOK_S = 0.004
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Load of a trial: users at a time, requests in all, pace of the streams."""

    users: int
    requests: int
    stream: bool
    pace: Pace
    tls: bool = False
    images: int = 0
    closed: bool = False
    """Streams, too, are begun when another is over, as the LLM benchmark clients do it, and not at a rate."""

    @property
    def stream_s(self) -> float:
        """Average duration of one stream."""
        p = self.pace
        return (p.ttft_us + p.spread_us / 2 + (p.events - 1) * p.gap_us) / 1e6 if self.stream else 0.0

    @property
    def stagger_s(self) -> float:
        """Delay between the begins of users, for an even load."""
        return self.stream_s / self.users

    @property
    def warm(self) -> int:
        """Requests begun when the window opens: all users are there."""
        return self.users + self.users // 4 if self.stream else max(self.users, self.requests // 10)


@dataclass(frozen=True)
class Place:
    """Cores, priority and lock of a trial."""

    server_core: int
    client_core: int
    urgent: bool = False
    lock: Path | None = None

    def pinned(self, core: int) -> tuple[str, ...]:
        """Command prefix that pins a process to its core."""
        # Nothing that is urgent may outlive us.
        urgent = ("setpriv", "--pdeathsig", "KILL", "chrt", "--fifo", "1") if self.urgent else ()
        return (*urgent, "taskset", "-c", str(core))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Raise our own priority while we poll counters, to see the end in time."""
        if not self.urgent:
            yield
            return
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
        try:
            yield
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, so that nobody else measures meanwhile."""
        if self.lock is None:
            yield
            return
        with self.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class Moment:
    """Counters and CPU time at one time."""

    at_ns: int
    cpu_ns: int
    count: Counters


@dataclass(frozen=True)
class Metered:
    """Resources used by one trial.

    `cpu_s` is over the whole life of the contender's processes, `peak_rss` the largest of one process.
    """

    first: Moment
    last: Moment
    end: Counters
    code: int
    cpu_s: float
    peak_rss_bytes: int
    server_cpu_share: float

    @property
    def cpu_share(self) -> float:
        """Share of one core used in the window."""
        return (self.last.cpu_ns - self.first.cpu_ns) / max(1, self.last.at_ns - self.first.at_ns)

    def per(self, what: str) -> float:
        """CPU microseconds per request (`begun`) or token (`events`)."""
        count = getattr(self.last.count, what) - getattr(self.first.count, what)
        return (self.last.cpu_ns - self.first.cpu_ns) / 1000 / count if count else float("nan")


class TrialError(Exception):
    """Failure of a contender; the text holds its last output."""


def cpu_ns(pid: int) -> int:
    """CPU time of a process and all its descendants, ended ones included."""
    total = 0
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0
    for process in tree:
        proc = Path(f"/proc/{process.pid}")
        with contextlib.suppress(OSError, IndexError, ValueError):
            for thread in (proc / "task").iterdir():
                total += int((thread / "schedstat").read_bytes().split()[0])
            after_name = (proc / "stat").read_text().rpartition(")")[2].split()
            total += (int(after_name[13]) + int(after_name[14])) * TICK_NS  # cutime, cstime
    return total


def moment(server: LoadServer, pid: int) -> Moment:
    """Read counters and CPU time now."""
    return Moment(time.monotonic_ns(), cpu_ns(pid), server.counters())


def run(
    load: Load,
    place: Place,
    server: LoadServer,
    command: tuple[Sequence[str], Mapping[str, str]],
    log: Path,
    limit_s: float,
) -> Metered:
    """Run a contender, given as argv and environment, against the server.

    Raises TrialError if it fails or is not done after `limit_s`.
    """
    argv, env = command
    server_first, began = cpu_ns(server.pid), time.monotonic_ns()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*place.pinned(place.client_core), *argv],
            env={**os.environ, **env}, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            with place.watching():
                first = _when(server, process.pid, load.warm, limit_s)
                last = _when(server, process.pid, load.requests, limit_s)
            server_share = (cpu_ns(server.pid) - server_first) / (time.monotonic_ns() - began)
            status, usage = _reap(process.pid, limit_s / 2)
        except TrialError as e:
            raise TrialError(f"{e}: {' '.join(argv)[:300]}\n{_last_words(log)}") from None
        finally:
            _kill(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    if first is not None and last is not None and first.count.begun == last.count.begun:
        raise TrialError("it ended before it could be measured: more requests are needed")
    if first is None or last is None:
        raise TrialError(f"ended early, code {process.returncode}: {' '.join(argv)[:300]}\n{_last_words(log)}")
    return Metered(
        first,
        last,
        server.counters(),
        process.returncode,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * 1024,
        server_share,
    )


def _when(server: LoadServer, pid: int, begun: int, limit_s: float) -> Moment | None:
    """Time at which that many requests had begun; None if it ended before."""
    until = time.monotonic() + limit_s
    while server.counters().begun < begun:
        if _ended(pid):
            return None
        if time.monotonic() > until:
            raise TrialError(f"not done within {limit_s:g} s ({server.counters()})")
        time.sleep(LOOK_S)
    return moment(server, pid)


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reap(pid: int, limit_s: float) -> tuple[int, resource.struct_rusage]:
    until = time.monotonic() + limit_s
    while not _ended(pid):
        if time.monotonic() > until:
            raise TrialError(f"sent everything, and did not end within {limit_s:g} s")
        time.sleep(0.02)
    _, status, usage = os.wait4(pid, 0)
    return status, usage


def _kill(pid: int) -> None:
    """Kill the rest of the session that we started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # reaped before
        os.waitpid(pid, 0)


def _last_words(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-8:])
