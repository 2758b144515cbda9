"""Follows a log through a command that prints it: docker, kubectl, journalctl, ssh, or whatever the user gave."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from loadchaos.server.monitor.logs.base import Feed, Told

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
"""The command, given None (from now on) or the UNIX time since which lines are wanted."""


class CommandSource:
    """One command, started again when it ends, asked then for what came meanwhile where it can say that.

    `head_argv` is a command that prints the log from its beginning, or None where there is none; `past_argv` one that
    prints the log of the life before, where that is another log (Kubernetes keeps it for the last container).
    """

    def __init__(
        self, argv: Argv, head_argv: Sequence[str] | None = None, past_argv: Sequence[str] | None = None
    ) -> None:
        self._argv, self._head_argv, self._past_argv = argv, head_argv, past_argv
        self._newest = b""
        self._caught_up = b""  # the end of the past log that was fed

    def head(self, limit_bytes: int) -> bytes:
        """See Source."""
        return _output(self._head_argv, limit_bytes) if self._head_argv is not None else b""

    def _catch_up(self, feed: Feed) -> None:
        """What a life said last, after we had lost it, where its log is kept under another name."""
        past = _output(self._past_argv, _MOST_PAST_BYTES) if self._past_argv is not None else b""
        if not past or past[-_KNOWN_BYTES:] == self._caught_up:
            return
        lines = self._newest.split(b"\n")
        for dropped in range(
            min(len(lines), _MOST_COMPLAINTS)
        ):  # the command's own words came after the log's last ones
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

    def follow(self, feed: Feed, told: Told, stop: threading.Event) -> None:
        """See Source."""
        since: float | None = None
        wait_s = _FIRST_WAIT_S
        while not stop.is_set():
            began = time.monotonic()
            ended = self._once(self._argv(since), feed, stop)
            if stop.is_set():
                return
            since = time.time()
            self._catch_up(feed)
            if time.monotonic() - began > _LONGEST_WAIT_S:
                wait_s = _FIRST_WAIT_S
            told(wait_s, f"{ended}; started again in {wait_s:g} s")
            stop.wait(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def _once(self, argv: Sequence[str], feed: Feed, stop: threading.Event) -> str:
        """Run it to its end; how it ended, in words."""
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as e:
            return f"{argv[0]}: {e.strerror}"
        done = threading.Event()
        # A read waits for the next line, which may never come: somebody else has to end the command.
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
            process.stdout.close()
        return f"{argv[0]} ended with code {code}"


def _output(argv: Sequence[str], limit_bytes: int) -> bytes:
    """The beginning of what a command prints within ten seconds; nothing where it cannot be started."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
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
    """The command and what it started: `sh -c` has children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def docker(name: str) -> CommandSource:
    """`docker logs` of a container; after a restart of the container with what it said meanwhile."""

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
    """`kubectl logs` of NAMESPACE/POD[/CONTAINER]."""
    namespace, pod, *container = where.split("/")
    base = ["kubectl", "logs", "-n", namespace, pod, *(["-c", container[0]] if container else [])]

    def argv(since: float | None) -> Sequence[str]:
        return [*base, "--follow", *(["--tail=0"] if since is None else [f"--since-time={_rfc3339(since)}"])]

    return CommandSource(argv, base, [*base, "--previous", f"--tail={_MOST_PAST_LINES}"])


def journal(unit: str) -> CommandSource:
    """`journalctl` of a systemd unit, messages only."""
    base = ["journalctl", "--unit", unit, "--output", "cat", "--no-pager"]

    def argv(since: float | None) -> Sequence[str]:
        return [*base, "--follow", *(["--lines", "0"] if since is None else ["--since", f"@{since:.0f}"])]

    return CommandSource(argv, [*base, "--boot"])


def ssh(where: str) -> CommandSource:
    """`tail -F` on another machine, HOST:PATH, without asking for a password."""
    host, _, path = where.partition(":")
    base = ["ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", host]
    quoted = "'" + path.replace("'", "'\\''") + "'"
    return CommandSource(lambda _: [*base, f"tail -n 0 -F {quoted}"], [*base, f"head -c 65536 {quoted}"])


def shell(text: str) -> CommandSource:
    """The user's own command."""
    return CommandSource(lambda _: ["sh", "-c", text])
