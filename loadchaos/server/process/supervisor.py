"""Supervisor process of a launched server, which records its output and ends it when `run` is gone (kill -9 included);
a stalled terminal never blocks the server. JSON lines: reports on stdout (`start`, `exit`), orders on stdin (`term`,
`kill`), whose end means that `run` is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.limits import LEFTOVERS_GRACE_S, SIGKILL_GRACE_OF_RUN_S
from loadchaos.core.redact import HIDDEN_VARIABLE, Redactor
from loadchaos.core.typed_json import to_json
from loadchaos.server.indexed_log import IndexedLog
from loadchaos.server.process.report import ReportKind, SupervisorReport

_PR_SET_CHILD_SUBREAPER = 36
_ORPHANED_S = 2.5
"""Time that the server runs after `run` was killed: the load ends first, or it would record a death of the server."""
NOT_STARTED = "could not be started"

LIMITS = {"memory": resource.RLIMIT_DATA, "open_files": resource.RLIMIT_NOFILE, "core": resource.RLIMIT_CORE}
"""Limits of each process of a server: bytes of its own memory, open files, size of a core file."""

_REPORT = threading.Lock()


def _become_subreaper() -> None:
    """Adopt orphans of the server, so that none is left behind. An example is an engine core whose parent was killed."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: only the process group is stopped then
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _report(what: ReportKind, **detail: Any) -> None:
    report = SupervisorReport(what, time.monotonic_ns(), **detail)
    with _REPORT, contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(to_json(report)) + "\n")
        sys.stdout.flush()


class ServerSupervisor:
    """Supervise one server: its process group, its output, its end."""

    def __init__(
        self, log: IndexedLog, redactor: Redactor, pipe: tuple[int, int], limits: dict[str, int], umask: int = -1
    ) -> None:
        self._log, self._dropped_bytes = log, 0
        self._umask = umask
        self._limits = limits
        self._output, self._input = pipe
        self._redactor = redactor
        self._server: subprocess.Popen[bytes] | None = None
        self._ending = threading.Lock()
        self._asked = False

    def start(self, command: list[str]) -> bool:
        """Start the server in its own session. False (after an exit report) when the command cannot be run."""
        try:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._input,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=self._umask,
                preexec_fn=self._limit if self._limits else None,  # safe: we have no other thread yet
            )
        except (OSError, subprocess.SubprocessError) as e:
            why = f"{command[0]}: {e.strerror}" if isinstance(e, OSError) else f"its limits {self._limits}: {e}"
            _report("exit", reason=f"{NOT_STARTED}: {why}")
            return False
        os.close(self._input)  # the end of the output is seen only once no process can write
        _report("start", pid=self._server.pid)
        self._reader = threading.Thread(target=self._read, name="read-server-output", daemon=True)
        self._reader.start()
        threading.Thread(target=self._read_orders, name="read-orders", daemon=True).start()
        return True

    def _limit(self) -> None:
        """Set the limits in the new process before the server runs. Our own hard limits cap them."""
        for name, most in self._limits.items():
            _, hard = resource.getrlimit(LIMITS[name])
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(LIMITS[name], (most, most))

    def wait(self) -> int:
        """Wait for the server's exit, report it and stop its remaining processes. Return our exit code, 0."""
        assert self._server is not None
        code = self._server.wait()
        reason = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        _report("exit", pid=self._server.pid, code=max(code, 0), signal=-code if code < 0 else None, reason=reason)
        # An orphaned worker of vLLM lives some seconds and still writes; its last lines may name the cause.
        self._reader.join(LEFTOVERS_GRACE_S)
        self._end_descendants(LEFTOVERS_GRACE_S)
        self._reader.join(LEFTOVERS_GRACE_S)
        if self._dropped_bytes:
            _report("dropped", bytes=self._dropped_bytes)
        self._log.close()
        return 0

    def end(self, grace_s: float) -> None:
        """Send SIGTERM to the server, after `grace_s` SIGKILL to all processes. Repeated calls are safe."""
        if self._server is None or not self._ending.acquire(blocking=False):
            return
        with contextlib.suppress(ProcessLookupError):
            self._server.terminate()
        deadline = time.monotonic() + grace_s
        while self._server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._server.poll() is None:
            self.kill()

    def kill(self) -> None:
        if self._server is None:
            return
        descendants = self._descendants()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server.pid, signal.SIGKILL)
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process().children(recursive=True)
        except psutil.Error:
            return []

    def _end_descendants(self, grace_s: float) -> None:
        _, left = psutil.wait_procs(self._descendants(), timeout=grace_s)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._output, 1 << 16):
                at_ns = time.monotonic_ns()
                self._keep(self._redactor.feed(data), at_ns)
        self._keep(self._redactor.flush(), time.monotonic_ns())

    def _keep(self, data: bytes, at_ns: int) -> None:
        """Write output. What cannot be written (disk full) is dropped: the server must never wait for our disk."""
        try:
            self._log.append(data, at_ns)
        except (LedgerError, OSError):
            self._dropped_bytes += len(data)

    def _read_orders(self) -> None:
        """Read orders from `run`, one JSON object per line. End of file means that `run` is gone."""
        for line in sys.stdin:
            try:
                order = json.loads(line)
            except ValueError:
                continue
            self._asked = True
            if order.get("what") == "term":
                self.end(float(order["grace_s"]))
            elif order.get("what") == "kill":
                self.kill()
        if not self._asked:
            time.sleep(_ORPHANED_S)
        self.end(grace_s=SIGKILL_GRACE_OF_RUN_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="loadchaos.server.process.supervisor")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pipe", type=int, nargs=2, metavar=("R", "W"), help="pipe for the output, created by `run`")
    parser.add_argument("--secret-env", action="append", default=[], help="variable whose value is redacted")
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=N", help=f"one of {', '.join(LIMITS)}")
    parser.add_argument("--umask", type=int, default=-1, help="umask of the server; ours keeps its log private")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    # `run` handles a Ctrl-C or a closed terminal: it sends an order, or is gone, which ends stdin.
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    _become_subreaper()
    redactor = Redactor.from_environment(os.environ)
    for name in args.secret_env:
        if value := os.environ.get(name):
            redactor.add(value)
    for variable in [v for v in os.environ if v.startswith(HIDDEN_VARIABLE)]:
        redactor.add(os.environ.pop(variable))
    redactor.argv(command)  # learns the values of --api-key and similar options
    try:
        limits = {name: int(most) for name, _, most in (text.partition("=") for text in args.limit)}
        log = IndexedLog(RunFolder(args.folder).server_log, "keeper", "server")
        supervisor = ServerSupervisor(log, redactor, tuple(args.pipe or os.pipe()), limits, args.umask)
    except (LedgerError, OSError) as e:
        _report("exit", reason=f"was not started: its log cannot be written: {e}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=supervisor.end, daemon=True).start())
    if not supervisor.start(command):
        return 0
    return supervisor.wait()


if __name__ == "__main__":
    sys.exit(main())
