"""Start a server, wait for it and stop it, through its supervisor process. What it does wrong is data, not an
exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import Emit, LaunchDetail, LaunchEvent, LaunchRow
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.core.private import user_mask
from loadchaos.core.redact import hidden_variables, launch_secrets
from loadchaos.core.typed_json import from_json
from loadchaos.core.urls import host_and_port
from loadchaos.server import nvml
from loadchaos.server.dialects import DEFAULT_DIALECT, DIALECTS
from loadchaos.server.monitor.gaps import CoverageGap
from loadchaos.server.process.report import SupervisorReport


@dataclass(frozen=True)
class LaunchCommand:
    """A command that starts a server; `env` on top of ours. Values of `env` that may be secret, and `secrets`, are redacted
    in its output. `limits` of each process: names of `LIMITS`.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    replica: str = "server"
    secrets: Sequence[str] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line, and the server's URL. An example is `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --port 8000`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str


_FREED_WITHIN_S = 3.0
_TAIL_BYTES = 4096
_LINE_CHARS = 200
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_TLS_OPTIONS = ("--ssl", "--ssl-certfile", "--ssl-keyfile")
_EVERYWHERE = ("0.0.0.0", "::", "")  # addresses of all interfaces: we use the loopback then


def parse_command_line(line: str | Sequence[str]) -> CommandLine:
    """Parse a command line, or its arguments. Raises OptionError without a command, for an unclosed quote or a wrong
    port.
    """
    try:
        parts = shlex.split(line) if isinstance(line, str) else list(line)
    except ValueError as e:
        raise OptionError(f"the command {line!r} cannot be parsed ({e}): is a quote not closed?") from None
    env = {}
    while parts and _ASSIGNMENT.match(parts[0]):
        name, _, value = parts.pop(0).partition("=")
        env[name] = _at_home(value)
    parts = [_at_home(part) for part in parts]
    if not parts:
        raise OptionError("the command is empty: give one such as 'vllm serve MODEL --port 8000'")
    port = _option(parts, "--port", "--server-port") or str(_default_port(parts))
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise OptionError(f"the port in the command must be a number from 1 to 65535 (got {port}); correct --port")
    host = _option(parts, "--host", "--server-name") or "127.0.0.1"
    host = "127.0.0.1" if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
    scheme = "https" if any(part.partition("=")[0] in _TLS_OPTIONS for part in parts) else "http"
    return CommandLine(tuple(parts), env, f"{scheme}://{host}:{port}")


def _default_port(parts: Sequence[str]) -> int:
    """Return the port of a command without --port. It is the default of the server it names, else vLLM's."""
    special = [d for d in DIALECTS.values() if d.command_word and d.default_port != DEFAULT_DIALECT.default_port]
    named = (d for d in special if any(d.command_word in part for part in parts))
    return next(named, DEFAULT_DIALECT).default_port


def _at_home(word: str) -> str:
    """Expand `~/x` as a shell does. Leave every other argument (a URL, JSON) as it is."""
    return str(Path(word).expanduser()) if word.startswith("~") else word


def refuse_taken_port(url: str) -> None:
    """Raise OptionError if a server listens there already. That server would be tested instead of the one we start."""
    address = host_and_port(url)
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as s:
        s.settimeout(0.5)
        if s.connect_ex(address) == 0:
            raise OptionError(
                f"another server already listens on {url}: stop it, or launch the server on another --port"
            )


def last_line(log: Path) -> str:
    """Return the newest non-empty line of a log, at most 200 characters. "" if there is none."""
    try:
        with log.open("rb") as f:
            f.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = [line for line in f.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1].strip()[:_LINE_CHARS] if lines else ""


def quoted_last_line(log: Path) -> str:
    """The newest line of a log as part of a sentence about an exit."""
    line = last_line(log)
    return f"; its last log line is {line!r}" if line else " without a log line"


def _option(parts: Sequence[str], *names: str) -> str | None:
    found = None
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        name, sign, value = part.partition("=")
        if name in names:
            found = value if sign else after
    return found


@dataclass(frozen=True)
class ServerExit:
    """End of a server: exit code or signal, and a description. `asked` if we stopped it ourselves."""

    code: int | None
    signal: int | None
    reason: str
    asked: bool
    at_ns: int


class LaunchedServer:
    """A server started by us. `pid` is set by `start`; `exit` is done once the server's process has ended."""

    def __init__(self, command: LaunchCommand, folder: Path, emit: Emit, shown: Sequence[str]) -> None:
        self._command = command
        self._folder = folder
        self._emit = emit
        self._shown = list(shown)  # the argv as the ledger may show it, already redacted
        self._supervisor: asyncio.subprocess.Process | None = None
        self._reports: asyncio.Task[None] | None = None
        self._gap = CoverageGap(emit, command.replica, "log")
        self._asked = False
        self.pid: int | None = None
        self._output: int | None = None
        self.lost = False  # the supervisor was killed: the server's state is not known
        self._gpus: list[int] | None = None
        self._started = asyncio.Event()
        self.exit: asyncio.Future[ServerExit] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start supervisor and server. Return once the server's process exists or could not be started."""
        self._gpus = await nvml.memory_used_mib()
        # We hold the reading end as well: a server whose supervisor is killed must not fail on writing its output.
        self._output, output = os.pipe()
        hidden = hidden_variables(self._command.secrets)
        options = [arg for name in launch_secrets(self._command.env) for arg in ("--secret-env", name)]
        options += [arg for name, most in self._command.limits.items() for arg in ("--limit", f"{name}={most}")]
        try:
            self._supervisor = await asyncio.create_subprocess_exec(
                *[*PYTHON_MODULE, "loadchaos.server.process.supervisor", "--folder", str(self._folder), *options],
                *["--umask", str(user_mask()), "--pipe", str(self._output), str(output), "--", *self._command.argv],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._command.env, **hidden},
                start_new_session=True,  # we handle a Ctrl-C on the terminal, not the supervisor
                pass_fds=(self._output, output),
            )
        finally:
            os.close(output)
        self._reports = asyncio.create_task(self._read_reports())
        await self._started.wait()

    async def _read_reports(self) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdout is not None
        async for line in self._supervisor.stdout:
            with contextlib.suppress(ValueError):
                self._handle_report(from_json(SupervisorReport, json.loads(line)))
        if not self.exit.done() and not self._asked:
            self.lost = True  # the server may live on: this is no proof of its death
            self._gap.report(0.0, "the supervisor process was killed; later server output is not recorded", "certain")
        self._started.set()

    def _handle_report(self, report: SupervisorReport) -> None:
        if report.what == "start":
            self.pid = report.pid
            self._row("start", report.at_ns, reason="")
            self._started.set()
        elif report.what == "exit":
            ended = ServerExit(report.code, report.signal, report.reason, self._asked, report.at_ns)
            reason = f"{ended.reason} (stopped by loadchaos)" if ended.asked else ended.reason
            self._row("exit", ended.at_ns, code=ended.code, signal=ended.signal, reason=reason, asked=ended.asked)
            if not self.exit.done():
                self.exit.set_result(ended)
            self._started.set()
        elif report.what == "dropped":
            self._gap.report(0.0, f"{report.bytes} bytes of server output could not be written", "certain")

    def _row(self, what: LaunchEvent, at_ns: int, *, reason: str, **detail: Unpack[LaunchDetail]) -> None:
        self._emit({**self._launch_row(what, at_ns, reason), **detail})

    def _launch_row(self, what: LaunchEvent, at_ns: int, reason: str) -> LaunchRow:
        return {
            "row": "launch",
            "at_ns": at_ns,
            "what": what,
            "replica": self._command.replica,
            "pid": self.pid,
            "command": self._shown,
            "reason": reason,
        }

    def repeat_start(self, emit: Emit) -> None:
        """Write the row of the server's start, dated now, into a run that uses a server started before."""
        emit(self._launch_row("start", time.monotonic_ns(), "it was started before this run"))

    def ready(self) -> None:
        self._row("ready", time.monotonic_ns(), reason="")

    @property
    def exit_reason(self) -> str | None:
        """`it exited with code 1`; None while the server lives."""
        return f"it {self.exit.result().reason}" if self.exit.done() else None

    async def wait_recorded(self, limit_s: float = 10.0) -> None:
        """Wait until the output of an ended server is recorded. Its supervisor has ended then."""
        await self._wait_for_supervisor(limit_s)
        await self._record_gpu_memory()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the server, after `grace_s` SIGKILL to all its processes, and wait for its supervisor."""
        self._asked = True
        await self._order({"what": "term", "grace_s": grace_s})
        await self.wait_recorded(grace_s + 8.0)

    async def stop_or_record(self, grace_s: float) -> None:
        """Stop the server, or wait until the end of a dead one is recorded."""
        await (self.wait_recorded() if self.exit.done() else self.stop(grace_s))

    async def kill(self, why: str = "") -> None:
        self._asked = True
        if why:
            self._row("kill", time.monotonic_ns(), reason=why, asked=True)
        await self._order({"what": "kill"})
        await self._wait_for_supervisor(5.0)

    async def _record_gpu_memory(self) -> None:
        """Record if its GPU memory is free again. The next server lacks what is not."""
        before, self._gpus = self._gpus, None
        found = await nvml.wait_memory_freed(before, _FREED_WITHIN_S) if before else None
        if found is not None:
            self._row("end", time.monotonic_ns(), reason=found[1], gpu_memory_freed=found[0])

    async def _order(self, order: Mapping[str, object]) -> None:
        if self._supervisor is None or self._supervisor.stdin is None or self._supervisor.returncode is not None:
            return
        with contextlib.suppress(ConnectionError, OSError):  # it ended between the check and the order
            self._supervisor.stdin.write(json.dumps(order).encode() + b"\n")
            await self._supervisor.stdin.drain()

    async def _wait_for_supervisor(self, limit_s: float) -> None:
        if self._output is not None:
            os.close(self._output)
            self._output = None
        if self._supervisor is None:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._supervisor.wait()
        except TimeoutError:
            self._supervisor.kill()
            await self._supervisor.wait()
        if self._reports is not None:
            await self._reports
        if self._supervisor.stdin is not None:  # its pipe is closed by a later step of the loop, which may be the last
            self._supervisor.stdin.close()
            with contextlib.suppress(OSError):
                await self._supervisor.stdin.wait_closed()
        if not self.exit.done() and self.pid is not None:
            # No supervisor is left to stop it. The supervisor gave it a session, so it has its own process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            lost = SupervisorReport("exit", time.monotonic_ns(), reason="ended without its supervisor")
            self._handle_report(lost)
