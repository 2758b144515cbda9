"""Follow a log through a command that prints it. The command is docker, kubectl, journalctl, ssh, or the user's own."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from loadchaos.core.lifetime import guard
from loadchaos.core.units import iso_utc
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
_NOT_STARTED = 127
_TRIAL_S = 1.0
_TRIAL_BYTES = 1 << 16
_MOST_HELD_BYTES = 1 << 14
_MOST_WORDS = 300
_PRINTERS = (
    r"docker|podman|nerdctl|crictl|kubectl|oc|stern|journalctl|ssh|kex_exchange_identification|tail|head|cat|less|grep|sed"
    r"|awk|sudo|env|timeout|stdbuf|(?:ba|da|z|k)?sh"
)
_ERRORS = (
    r"Cannot connect to the Docker daemon|Error response from daemon:|[Gg]ot permission denied while trying"
    r"|permission denied while trying to connect|Error from server|[Uu]nable to connect to the server"
    r"|The connection to the server \S+ was refused|No journal files were|Failed to \w+ (?:journal|match|boot)"
    r"|-- No entries|Hint: You are currently not seeing|Permission denied \(|Host key verification failed"
    r"|Connection to \S+ closed|[Nn]o such container|container .+ (?:is|in) "
)
_COMPLAINT = re.compile(
    rf"(?:/\S*/)?(?:{_PRINTERS})(?:\[\d+\])?: |(?:[Ee]rror: )?(?:{_ERRORS})|E\d{{4}} \S+ +\d+ memcache\.go:".encode()
)
"""A line of a program that prints logs about itself."""

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
        self._held = b""  # complaints of the command, which are no lines of the log if nothing follows

    def prove(self) -> str:
        """Tell why the log cannot be followed, in the words of its command; empty: it can. Takes a second, more where the
        log is on another machine.
        """
        argv = self._argv(None)
        try:
            if self._head_argv is not None and (why := _why_no_head(self._head_argv)):
                return why
            code, text = _try(argv, _TRIAL_S)
        except OSError as e:  # the program of both commands
            return f"{argv[0]}: {e.strerror}"
        if code is not None:
            more = "" if code else "; a command that stays and follows the log was expected, such as tail -F FILE"
            return f"{_ended(argv, code, text)}{more}"
        return _words(text) if _only_complaints(text) else ""

    def head(self, limit_bytes: int) -> bytes:
        return _output(self._head_argv, limit_bytes) if self._head_argv is not None else b""

    def _catch_up(self, feed: Feed) -> None:
        """Feed lines before a restart that were not printed. This needs a kept log of that time."""
        past = _output(self._past_argv, _MOST_PAST_BYTES) if self._past_argv is not None else b""
        if not past or past[-_KNOWN_BYTES:] == self._caught_up:
            return
        lines = self._newest.split(b"\n")
        # Messages of the command itself may follow the last lines of the log.
        for dropped in range(min(len(lines), _MOST_COMPLAINTS)):
            known = b"\n".join(lines[: len(lines) - dropped])[-_KNOWN_BYTES:]
            if len(known) < _FEWEST_BYTES:
                return
            if (at := past.rfind(known)) >= 0:
                self._caught_up = past[-_KNOWN_BYTES:]
                feed(past[at + len(known) :])
                return

    def _feed(self, feed: Feed, data: bytes) -> None:
        data, self._held = self._held + data, b""
        if len(data) < _MOST_HELD_BYTES and _only_complaints(data):
            self._held = data
            return
        self._newest = (self._newest + data)[-2 * _KNOWN_BYTES :]
        feed(data)

    def follow(self, feed: Feed, report_gap: ReportGap, stop: threading.Event) -> None:
        since: float | None = None
        wait_s = _FIRST_WAIT_S
        while not stop.is_set():
            began = time.monotonic()
            code, ended = self._run_once(self._argv(since), feed, stop)
            if stop.is_set():
                return
            since = time.time()
            self._catch_up(feed)
            if time.monotonic() - began > _LONGEST_WAIT_S:
                wait_s = _FIRST_WAIT_S
            report_gap(wait_s, f"{ended}; it starts again in {wait_s:.1f} s", None)
            stop.wait(wait_s)
            if stop.is_set() and code:
                report_gap(0.0, f"{ended}, and the log was not read to its end; lines may be lost", "possible")
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def _run_once(self, argv: Sequence[str], feed: Feed, stop: threading.Event) -> tuple[int, str]:
        """Feed what a command prints until it ends. Returns its exit code, and how it ended in words."""
        done = threading.Event()
        with contextlib.ExitStack() as stack:
            try:
                process, output = stack.enter_context(_started(argv))
            except OSError as e:
                return _NOT_STARTED, f"{argv[0]}: {e.strerror}"
            # A read waits for the next line, which may never come: another thread has to end the command.
            ender = threading.Thread(target=_end_when, args=(process, stop, done), daemon=True)
            ender.start()
            try:
                while data := os.read(output, _CHUNK_BYTES):
                    self._feed(feed, data)
                code = process.wait()
            finally:
                done.set()
                ender.join()
        held, self._held = self._held, b""
        if held and code == 0:
            feed(held)
        return code, _ended(argv, code, held)


def _ended(argv: Sequence[str], code: int, text: bytes) -> str:
    words = _words(text)
    return f"{argv[0]} ended with code {code}{f': {words}' if words else ''}"


def _words(text: bytes) -> str:
    """The last lines of what a command printed, as one."""
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:_MOST_WORDS]


def _only_complaints(text: bytes) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_COMPLAINT.match(line) for line in lines)


def _why_no_head(argv: Sequence[str]) -> str:
    code, text = _try(argv, _HEAD_LIMIT_S)
    if code:
        return _ended(argv, code, text)
    if _only_complaints(text):
        return _words(text)
    return f"`{shlex.join(argv)}` printed nothing within {_HEAD_LIMIT_S:g} s" if code is None and not text else ""


def _try(argv: Sequence[str], limit_s: float, limit_bytes: int = _TRIAL_BYTES) -> tuple[int | None, bytes]:
    """(exit code, beginning of its output) of a command; it is killed after the limits, and the code is None. Raises
    OSError where it cannot be started.
    """
    text, deadline_s, ready = bytearray(), time.monotonic() + limit_s, select.poll()
    with _started(argv) as (process, output):
        ready.register(output, select.POLLIN)
        try:
            while len(text) < limit_bytes and (left_s := deadline_s - time.monotonic()) > 0:
                if ready.poll(1000 * left_s):
                    data = os.read(output, min(_CHUNK_BYTES, limit_bytes - len(text)))
                    if not data:
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            return process.wait(max(0.0, deadline_s - time.monotonic())), bytes(text)
                        break
                    text += data
            return process.poll(), bytes(text)
        finally:
            _kill(process)
            process.wait()


@contextlib.contextmanager
def _started(argv: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a command; gives it and the descriptor of its output. It ends with us, also where we are killed: a log that
    is silent never writes to its broken pipe.
    """
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(argv, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout is not None
    orphaned = guard('kill -KILL "-$1"', str(process.pid))
    try:
        yield process, process.stdout.fileno()
    finally:
        orphaned.kill()
        orphaned.communicate()
        process.stdout.close()


def _output(argv: Sequence[str], limit_bytes: int) -> bytes:
    """Return the beginning of what a command prints within ten seconds. Empty if it cannot be started."""
    try:
        return _try(argv, _HEAD_LIMIT_S, limit_bytes)[1]
    except OSError:
        return b""


def _end_when(process: subprocess.Popen[bytes], stop: threading.Event, done: threading.Event) -> None:
    while not done.wait(0.1):
        if stop.is_set():
            _kill(process)
            return


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its children, which `sh -c` has."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _following(
    base: Sequence[str], from_now: Sequence[str], since: Callable[[float], Sequence[str]], name: Sequence[str] = ()
) -> Argv:
    """Return the command that follows a log: `base`, the options that name the first line, and `name`."""
    return lambda unix_s: [*base, "--follow", *(from_now if unix_s is None else since(unix_s)), *name]


def docker(name: str) -> CommandSource:
    base = ["docker", "logs"]
    argv = _following(base, ["--tail", "0"], lambda unix_s: ["--since", iso_utc(unix_s)], [name])
    return CommandSource(argv, [*base, name])


def kubernetes(where: str) -> CommandSource:
    namespace, pod, *container = where.split("/")
    base = ["kubectl", "logs", "-n", namespace, pod, *(["-c", container[0]] if container else [])]
    argv = _following(base, ["--tail=0"], lambda unix_s: [f"--since-time={iso_utc(unix_s)}"])
    return CommandSource(argv, base, [*base, "--previous", f"--tail={_MOST_PAST_LINES}"])


def journal(unit: str) -> CommandSource:
    base = ["journalctl", "--unit", unit, "--output", "cat", "--no-pager"]
    argv = _following(base, ["--lines", "0"], lambda unix_s: ["--since", f"@{unix_s:.0f}"])
    return CommandSource(argv, [*base, "--boot"])


def ssh(where: str) -> CommandSource:
    """Follow HOST:PATH with `tail -F` over ssh, without a password prompt."""
    host, _, path = where.partition(":")
    base = ["ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", host]
    quoted = "'" + path.replace("'", "'\\''") + "'"
    return CommandSource(lambda _: [*base, f"tail -n 0 -F {quoted}"], [*base, f"head -c 65536 {quoted}"])


def shell(text: str) -> CommandSource:
    return CommandSource(lambda _: ["sh", "-c", text])
