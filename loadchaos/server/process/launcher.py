"""Start, wait for, and end a server through its keeper. What the server does wrong (exits, never starts) is data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import urlsplit

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import Emit, LaunchDetail, LaunchEvent
from loadchaos.server import nvml
from loadchaos.server.dialects import DEFAULT_DIALECT, DIALECTS

HIDDEN_VARIABLE = "LOADCHAOS_HIDE_"
"""How the keeper is told what to hide: variables that it takes out of the environment before it starts the server."""


@dataclass(frozen=True)
class Command:
    """What to start: argv, variables on top of our environment, and the replica's name in the ledger.

    `secrets` are values of ours that the server may log: the keeper hides them, and the server never sees them.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    replica: str = "server"
    secret_env: Sequence[str] = ()
    secrets: Sequence[str] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    """What each process of it may have at most: names of LIMITS, bytes and numbers."""


@dataclass(frozen=True)
class Typed:
    """A server as a person types it: `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --port 8000`, and where it will listen."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str


_FREED_WITHIN_S = 3.0
_TAIL_BYTES = 4096
_LINE_CHARS = 200
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_EVERYWHERE = ("0.0.0.0", "::", "")  # what a command may say; we ask the loopback then


def typed(words: str | Sequence[str]) -> Typed:
    """Read a command line, or its words. OptionError where it names no command, or its quotes do not close."""
    try:
        parts = shlex.split(words) if isinstance(words, str) else list(words)
    except ValueError as e:
        raise OptionError(f"the command {words!r} cannot be read ({e}): are its quotes closed?") from None
    env = {}
    while parts and _ASSIGNMENT.match(parts[0]):
        name, _, value = parts.pop(0).partition("=")
        env[name] = _at_home(value)
    parts = [_at_home(part) for part in parts]
    if not parts:
        raise OptionError("a command was expected, e.g. 'vllm serve MODEL --port 8000'")
    port = _option(parts, "--port", "--server-port") or str(_default_port(parts))
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise OptionError(f"the command's port is a number up to 65535 (got {port})")
    host = _option(parts, "--host", "--server-name") or "127.0.0.1"
    host = "127.0.0.1" if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
    return Typed(tuple(parts), env, f"http://{host}:{port}")


def _default_port(parts: Sequence[str]) -> int:
    """The port that the server listens on where its command names none; vLLM is often started by a script."""
    special = [d for d in DIALECTS.values() if d.command_word and d.default_port != DEFAULT_DIALECT.default_port]
    named = (d for d in special if any(d.command_word in part for part in parts))
    return next(named, DEFAULT_DIALECT).default_port


def _at_home(word: str) -> str:
    """`~/x` as a shell reads it; every other word as it is (a URL or JSON is no path)."""
    return str(Path(word).expanduser()) if word.startswith("~") else word


def refuse_taken_port(url: str) -> None:
    """OptionError where somebody else serves it already: that server would be tested in place of the one we start."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET) as s:
        s.settimeout(0.5)
        if s.connect_ex((parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))) == 0:
            raise OptionError(
                f"{url} is served already, so the server to launch could not listen there: end that one, or choose "
                "another --port"
            )


def last_line(log: Path) -> str:
    """The newest line of a log that says anything, at most 200 characters of it; empty where there is none."""
    try:
        with log.open("rb") as f:
            f.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = [line for line in f.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1].strip()[:_LINE_CHARS] if lines else ""


def _option(parts: Sequence[str], *names: str) -> str | None:
    """The value behind one of these options, the last one given."""
    found = None
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        name, sign, value = part.partition("=")
        if name in names:
            found = value if sign else after
    return found


@dataclass(frozen=True)
class Exit:
    """How a server ended: exit code or signal, and in words; `asked` when we ended it ourselves."""

    code: int | None
    signal: int | None
    reason: str
    asked: bool
    at_ns: int


class Launched:
    """A server started by us. `pid` after `start`; `exit` is done when the server's own process has ended."""

    def __init__(self, command: Command, folder: Path, emit: Emit, shown: Sequence[str]) -> None:
        self._command = command
        self._folder = folder
        self._emit = emit
        self._shown = list(shown)  # the argv as the ledger may show it, already redacted
        self._keeper: asyncio.subprocess.Process | None = None
        self._reports: asyncio.Task[None] | None = None
        self._asked = False
        self.pid: int | None = None
        self._output: int | None = None
        self.lost = False  # the keeper is gone without a word: what became of the server is not known
        self._gpus: list[int] | None = None
        self._started = asyncio.Event()
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start the keeper and the server; returns when the server's process exists or could not be started."""
        self._gpus = await nvml.memory_used_mib()
        # We keep the reading end, too: a server whose keeper is killed must not break over its own log.
        self._output, output = os.pipe()
        hidden = {f"{HIDDEN_VARIABLE}{n}": value for n, value in enumerate(self._command.secrets)}
        told = [arg for name in self._command.secret_env for arg in ("--secret-env", name)]
        told += [arg for name, most in self._command.limits.items() for arg in ("--limit", f"{name}={most}")]
        try:
            self._keeper = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "loadchaos.server.process.supervisor",
                "--folder",
                str(self._folder),
                *told,
                "--pipe",
                str(self._output),
                str(output),
                "--",
                *self._command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._command.env, **hidden},
                start_new_session=True,  # a Ctrl-C on the terminal is ours to handle, not the keeper's
                pass_fds=(self._output, output),
            )
        finally:
            os.close(output)
        self._reports = asyncio.create_task(self._listen())
        await self._started.wait()

    async def _listen(self) -> None:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        async for line in self._keeper.stdout:
            try:
                report = json.loads(line)
            except ValueError:
                continue
            self._take(report)
        if not self.exit.done() and not self._asked:
            self._lose()
        self._started.set()

    def _lose(self) -> None:
        """The keeper was killed, and the server with it or not: that is no death of the server, but an end of knowing."""
        self.lost = True
        self._gap(time.monotonic_ns(), "the keeper was lost: from here on output could not be written")

    def _take(self, report: dict[str, Any]) -> None:
        at_ns = int(report.get("at_ns") or time.monotonic_ns())
        if report["what"] == "start":
            self.pid = report["pid"]
            self._row("start", at_ns, reason="")
            self._started.set()
        elif report["what"] == "exit":
            ended = Exit(report.get("code"), report.get("signal"), str(report["reason"]), self._asked, at_ns)
            reason = f"{ended.reason} (asked)" if ended.asked else ended.reason
            self._row("exit", at_ns, code=ended.code, signal=ended.signal, reason=reason, asked=ended.asked)
            if not self.exit.done():
                self.exit.set_result(ended)
            self._started.set()
        elif report["what"] == "dropped":
            self._gap(at_ns, f"{report['bytes']} bytes of server output could not be written")

    def _gap(self, at_ns: int, why: str) -> None:
        replica = self._command.replica
        self._emit({"row": "gap", "at_ns": at_ns, "replica": replica, "source": "log", "seconds": 0.0, "why": why})

    def _row(self, what: LaunchEvent, at_ns: int, *, reason: str, **detail: Unpack[LaunchDetail]) -> None:
        self._emit(
            {
                "row": "launch",
                "at_ns": at_ns,
                "what": what,
                "replica": self._command.replica,
                "pid": self.pid,
                "command": self._shown,
                "reason": reason,
                **detail,
            }
        )

    def ready(self) -> None:
        """Record that the server answered as healthy."""
        self._row("ready", time.monotonic_ns(), reason="")

    async def over(self, limit_s: float = 10.0) -> None:
        """Wait until a server that has ended by itself is recorded to its last line and its keeper is gone."""
        await self._wait_for_keeper(limit_s)
        await self._look_at_gpus()

    async def stop(self, grace_s: float = 10.0) -> None:
        """End the server in order (SIGTERM, then SIGKILL of all it started) and wait until the keeper is gone."""
        self._asked = True
        await self._order({"what": "term", "grace_s": grace_s})
        await self._wait_for_keeper(grace_s + 8.0)
        await self._look_at_gpus()

    async def kill(self, why: str = "") -> None:
        """End everything at once; `why` is recorded before anything of it is seen."""
        self._asked = True
        if why:
            self._row("kill", time.monotonic_ns(), reason=why, asked=True)
        await self._order({"what": "kill"})
        await self._wait_for_keeper(5.0)

    async def _look_at_gpus(self) -> None:
        """Record whether what it used of them is free again: what it leaves behind there, the next server lacks."""
        before, self._gpus = self._gpus, None
        found = await nvml.wait_memory_freed(before, _FREED_WITHIN_S) if before else None
        if found is not None:
            self._row("end", time.monotonic_ns(), reason=found[1], gpu_memory_freed=found[0])

    async def _order(self, order: Mapping[str, object]) -> None:
        if self._keeper is None or self._keeper.stdin is None or self._keeper.returncode is not None:
            return
        with contextlib.suppress(ConnectionError, OSError):  # it ended between the check and the order
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            await self._keeper.stdin.drain()

    async def _wait_for_keeper(self, limit_s: float) -> None:
        if self._output is not None:
            os.close(self._output)
            self._output = None
        if self._keeper is None:
            return
        try:
            await asyncio.wait_for(self._keeper.wait(), limit_s)
        except TimeoutError:
            self._keeper.kill()
            await self._keeper.wait()
        if self._reports is not None:
            await self._reports
        if not self.exit.done() and self.pid is not None:
            # No keeper is left to end it; the group is its own, as the keeper gave it a session.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._take({"what": "exit", "reason": "ended without its keeper", "at_ns": time.monotonic_ns()})
