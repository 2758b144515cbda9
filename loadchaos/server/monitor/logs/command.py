"""Follow a log through a command that prints it. The command is docker, kubectl, journalctl, ssh, or the user's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from loadchaos.core.lifetime import guard
from loadchaos.server.monitor.logs.base import Feed, ReportGap

_CHUNK_BYTES = 1 << 16
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
_HEAD_LIMIT_S = 10.0
_MOST_PAST_BYTES = 8 << 20
_KNOWN_BYTES = 1024
_MOST_PAST_LINES = 20_000
_FEWEST_BYTES = 24
_MOST_COMPLAINTS = 20

Argv = Callable[[float | None], Sequence[str]]
"""Returns the command for the lines from now on (None) or since a UNIX time."""


class CommandSource:
    """Follows one command. When it ends, it starts again with the lines that came meanwhile. `head_argv` prints the log
    from its beginning, `past_argv` the log before the last restart, if that is another one (Kubernetes).
    """

    def __init__(
        self, argv: Argv, head_argv: Sequence[str] | None = None, past_argv: Sequence[str] | None = None
    ) -> None:
        self._argv, self._head_argv, self._past_argv = argv, head_argv, past_argv
        self._newest = b""
        self._caught_up = b""  # the end of the past log that was fed

    def head(self, limit_bytes: int) -> bytes:
        return _output(self._head_argv, limit_bytes) if self._head_argv is not None else b""

    def _catch_up(self, feed: Feed) -> None:
        """Feed lines before a restart that were not printed. This needs a kept log of that time."""
        past = _output(self._past_argv, _MOST_PAST_BYTES) if self._past_argv is not None else b""
        if not past or past[-_KNOWN_BYTES:] == self._caught_up:
            return
        lines = self._newest.split(b"\n")
        for dropped in range(
            min(len(lines), _MOST_COMPLAINTS)
        ):  # messages of the command itself may follow the last lines of the log
            known = b"\n".join(lines[: len(lines) - dropped])[-_KNOWN_BYTES:]
            if len(known) < _FEWEST_BYTES:
                return
            if (at := past.rfind(known)) >= 0:
                self._caught_up = past[-_KNOWN_BYTES:]
                feed(past[at + len(known) :])
                return

    def _feed(self, feed: Feed, data: bytes) -> None:
        self._newest = (self._newest + data)[-2 * _KNOWN_BYTES :]
        feed(data)

    def follow(self, feed: Feed, report_gap: ReportGap, stop: threading.Event) -> None:
        since: float | None = None
        wait_s = _FIRST_WAIT_S
        while not stop.is_set():
            began = time.monotonic()
            ended = self._run_once(self._argv(since), feed, stop)
            if stop.is_set():
                return
            since = time.time()
            self._catch_up(feed)
            if time.monotonic() - began > _LONGEST_WAIT_S:
                wait_s = _FIRST_WAIT_S
            report_gap(wait_s, f"{ended}; it starts again in {wait_s:.1f} s", None)
            stop.wait(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def _run_once(self, argv: Sequence[str], feed: Feed, stop: threading.Event) -> str:
        try:
            process = _start(argv)
        except OSError as e:
            return f"{argv[0]}: {e.strerror}"
        done = threading.Event()
        # A log that is silent never writes to its broken pipe: where we are killed, another process ends the command.
        orphaned = guard('kill -KILL "-$1"', str(process.pid))
        # A read waits for the next line, which may never come: another thread has to end the command.
        ender = threading.Thread(target=_end_when, args=(process, stop, done), daemon=True)
        ender.start()
        assert process.stdout is not None
        try:
            while data := os.read(process.stdout.fileno(), _CHUNK_BYTES):
                self._feed(feed, data)
            code = process.wait()
        finally:
            done.set()
            ender.join()
            orphaned.kill()
            orphaned.communicate()
            process.stdout.close()
        return f"{argv[0]} ended with code {code}"


def _start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(argv, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True)


def _output(argv: Sequence[str], limit_bytes: int) -> bytes:
    """Return the beginning of what a command prints within ten seconds. Empty if it cannot be started."""
    try:
        process = _start(argv)
    except OSError:
        return b""
    limit = threading.Timer(_HEAD_LIMIT_S, _kill, [process])
    limit.start()
    try:
        assert process.stdout is not None
        return process.stdout.read(limit_bytes)
    finally:
        limit.cancel()
        _kill(process)
        process.communicate()


def _end_when(process: subprocess.Popen[bytes], stop: threading.Event, done: threading.Event) -> None:
    while not done.wait(0.1):
        if stop.is_set():
            _kill(process)
            return


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its children, which `sh -c` has."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def docker(name: str) -> CommandSource:
    def argv(since: float | None) -> Sequence[str]:
        return [
            "docker",
            "logs",
            "--follow",
            *(["--tail", "0"] if since is None else ["--since", _rfc3339(since)]),
            name,
        ]

    return CommandSource(argv, ["docker", "logs", name])


def kubernetes(where: str) -> CommandSource:
    namespace, pod, *container = where.split("/")
    base = ["kubectl", "logs", "-n", namespace, pod, *(["-c", container[0]] if container else [])]

    def argv(since: float | None) -> Sequence[str]:
        return [*base, "--follow", *(["--tail=0"] if since is None else [f"--since-time={_rfc3339(since)}"])]

    return CommandSource(argv, base, [*base, "--previous", f"--tail={_MOST_PAST_LINES}"])


def journal(unit: str) -> CommandSource:
    base = ["journalctl", "--unit", unit, "--output", "cat", "--no-pager"]

    def argv(since: float | None) -> Sequence[str]:
        return [*base, "--follow", *(["--lines", "0"] if since is None else ["--since", f"@{since:.0f}"])]

    return CommandSource(argv, [*base, "--boot"])


def ssh(where: str) -> CommandSource:
    """Follow HOST:PATH with `tail -F` over ssh, without a password prompt."""
    host, _, path = where.partition(":")
    base = ["ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", host]
    quoted = "'" + path.replace("'", "'\\''") + "'"
    return CommandSource(lambda _: [*base, f"tail -n 0 -F {quoted}"], [*base, f"head -c 65536 {quoted}"])


def shell(text: str) -> CommandSource:
    return CommandSource(lambda _: ["sh", "-c", text])
