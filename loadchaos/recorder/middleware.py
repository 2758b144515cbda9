"""Write the recording of a server whose middleware observes its requests.

`loadchaos_vllm.Recorder` in the server starts `loadchaos record --middleware FD` and sends frames to it. When the server
ends without its shutdown, or says that its engine is dead, the ring is kept.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import OptionError, next_step
from loadchaos.recorder.frames import FrameKind, FrameReader
from loadchaos.recorder.freeze import FreezeWatch
from loadchaos.recorder.recorder import AFTER_S, describe_notice
from loadchaos.recorder.ring import RING, RingLimits, SegmentRing, segments_of
from loadchaos.recorder.shape import known_path
from loadchaos.recorder.tap import TappedExchange, end_row, secret_words
from loadchaos.recorder.writer import RecordingWriter

PROTOCOL = 1
LOCK = "ring.lock"
_READ_BYTES = 1 << 20
_WAIT_S = 0.25
_MOST_SERVERS = 64
_DEAD = "vLLM's engine client says that its engine is dead"
_ENDED = "server ended: its process is gone without a shutdown"


class MiddlewareRecording:
    """Makes rows of the frames of a middleware, and keeps the ring when due."""

    def __init__(
        self, out: Path, limits: RingLimits, tell: Callable[[str], None], *, bodies: bool, most_failed: float | None
    ) -> None:
        self._out, self._limits, self._tell, self._bodies = out, limits, tell, bodies
        self._writer = RecordingWriter()
        self._watch = FreezeWatch(most_failed, answers=True)
        self._freeze_at_s: float | None = None
        self._reason = ""
        self._requests = 0  # since the ring was kept
        self._closed = False
        self._lock: int | None = None

    def feed(self, kind: FrameKind, number: int, data: bytes) -> None:
        """Handle one frame."""
        if kind is FrameKind.BODY:
            self._writer.feed(kind, number, data)
            return
        given: dict[str, Any] = orjson.loads(data)
        if kind is FrameKind.SETUP:
            self._open(given)
        elif kind is FrameKind.BEGIN:
            self._requests += 1
            row: dict[str, Any] = {"at_ns": given["at_ns"], "path": known_path(given["path"].encode())}
            if self._bodies:
                row["secrets"] = secret_words([s.encode("latin-1") for s in given["secrets"]])
            self._writer.feed(kind, number, orjson.dumps(row))
        elif kind is FrameKind.ANSWER:
            self._end(number, given)
        elif kind is FrameKind.CLOSE:
            self._close(errored=bool(given["errored"]))
        else:
            self._writer.feed(kind, number, data)

    def poll(self, now_s: float) -> None:
        """Write all rows; keep the ring when it is due."""
        self._writer.flush()
        if self._freeze_at_s is not None and now_s >= self._freeze_at_s:
            self._freeze_now()
        for notice in self._writer.notices:
            self._tell(describe_notice(notice, "server"))
        self._writer.notices.clear()

    def finish(self) -> None:
        """End the recording; without a close frame, the server has died."""
        if self._freeze_at_s is None and not self._closed and self._requests:
            self._freeze(_ENDED, 0.0)
        if self._freeze_at_s is not None:
            self._freeze_now()
        self.poll(time.monotonic())
        self._writer.close()
        if self._lock is not None:
            os.close(self._lock)

    def _open(self, given: dict[str, Any]) -> None:
        if given.get("protocol") != PROTOCOL:
            raise OptionError(
                f"loadchaos-vllm speaks version {given.get('protocol')} of the protocol, this loadchaos version {PROTOCOL}: "
                "install both from the same release"
            )
        folder, self._lock = claim(self._out)
        self._keep_unclosed(folder, str(given["recording"]))
        setup = {
            "key": given["key"], "folder": str(folder.absolute()), "keep_s": self._limits.keep_s,
            "max_bytes": self._limits.max_bytes, "bodies": self._bodies, "recording": given["recording"],
            "server": {"dialect": "vllm", "version": given.get("version") or ""},
        }  # fmt: skip
        self._writer.feed(FrameKind.SETUP, 0, orjson.dumps(setup))
        kind = "bodies without secrets" if self._bodies else "shapes of requests, no content"
        self._tell(f"recording {kind} in {folder / RING}; kill -USR1 {os.getpid()} keeps them")

    def _keep_unclosed(self, folder: Path, recording: str) -> None:
        """Keep the ring of a server that died together with its recorder."""
        if not unclosed(folder, recording):
            return
        try:
            frozen = SegmentRing(folder, self._limits, bytes).freeze("server ended: before this start")
            self._tell(f"kept {frozen} (the server before this one ended without a shutdown)")
        except OSError as e:
            self._tell(f"not kept (the server before this one ended without a shutdown): {e.strerror or e}")

    def _end(self, number: int, given: dict[str, Any]) -> None:
        exchange = exchange_of(number, given)
        if exchange.recorded:
            self._writer.feed(FrameKind.END, number, orjson.dumps(end_row(exchange)))
        if given.get("errored") and exchange.outcome != "aborted":
            reason = self._watch.died(_DEAD)
        else:
            reason = self._watch.feed(exchange)
        if reason is not None:
            self._freeze(reason, AFTER_S)

    def _close(self, *, errored: bool) -> None:
        reason = self._watch.died(_DEAD) if errored else None
        if reason is not None:
            self._freeze(reason, 0.0)
        if self._freeze_at_s is not None:
            self._freeze_now()
        self._closed = True
        self._writer.note({"row": "close", "at_ns": time.monotonic_ns()})

    def freeze(self) -> None:
        """Keep the ring because of a signal."""
        self._freeze("signal", 0.0)

    def _freeze(self, reason: str, after_s: float) -> None:
        if self._freeze_at_s is None:
            self._freeze_at_s, self._reason = time.monotonic() + after_s, reason

    def _freeze_now(self) -> None:
        self._freeze_at_s, self._requests = None, 0
        row = {"at_ns": time.monotonic_ns(), "reason": self._reason}
        self._writer.feed(FrameKind.FREEZE, 0, orjson.dumps(row))


def exchange_of(number: int, given: dict[str, Any]) -> TappedExchange:
    """Make the exchange that a middleware saw, with its outcome."""
    method = "POST" if given.get("post") else "GET"
    exchange = TappedExchange(number, int(given["begun_ns"]), method, str(given["path"]).encode())
    exchange.status, exchange.sse = int(given.get("status", 0)), bool(given.get("sse"))
    exchange.tokens, exchange.events = int(given.get("tokens", 0)), int(given.get("events", 0))
    exchange.first_ns, exchange.last_ns = int(given.get("first_ns", 0)), int(given["at_ns"])
    exchange.gap_ns, exchange.got_bytes = int(given.get("gap_ns", 0)), int(given.get("bytes", 0))
    tail = str(given.get("tail", "")).encode("latin-1")
    exchange.tail, exchange.kept = (b"", b"", tail), [tail]
    how = given["how"]
    if how == "raised" and not exchange.status:
        exchange.status = 500  # the server answers so behind the middleware
        how = "complete"
    exchange.end("complete" if how == "complete" else "hung_up" if how == "left" else "cut")
    return exchange


def claim(out: Path) -> tuple[Path, int]:
    """Folder of this server, and its lock.

    Servers side by side, such as those of --api-server-count, have folders of their own. Raises OptionError.
    """
    for number in range(1, _MOST_SERVERS + 1):
        folder = out if number == 1 else out / f"server-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as e:
            raise OptionError(f"{folder}: {e.strerror}; {next_step(e)}") from e
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, lock
        except BlockingIOError:
            os.close(lock)
    raise OptionError(f"{out}: {_MOST_SERVERS} servers record there already; choose another folder with --out")


def unclosed(folder: Path, recording: str) -> bool:
    """True if the ring has requests of another recording that did not end."""
    segments = segments_of(folder / RING)
    if not segments:
        return False
    try:
        data = segments[-1].read_bytes()
        *_, last = data.rstrip(b"\n").rsplit(b"\n", 1)
        ours = f'"recording":"{recording}"'.encode() in data.partition(b"\n")[0]
        return not ours and b'"row":"close"' not in last and any(b'"row":"begin"' in s.read_bytes() for s in segments)
    except OSError:
        return False


def record_from_middleware(file: int, recording: MiddlewareRecording) -> int:
    """Write until the server's end. Returns the exit code."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)  # the server's end is ours
    signal.signal(signal.SIGUSR1, lambda *_: recording.freeze())
    os.umask(0o077)
    os.nice(5)
    server, reader = os.getppid(), FrameReader()
    with socket.socket(fileno=file) as channel:
        waiting = select.poll()  # not select: the server may have more than 1,024 open descriptors
        waiting.register(channel, select.POLLIN)
        while True:
            ready = waiting.poll(1000 * _WAIT_S)
            try:
                data = channel.recv(_READ_BYTES) if ready else None
            except ConnectionError:
                break
            if data == b"":
                break
            for kind, number, content in reader.feed(data or b""):
                recording.feed(kind, number, content)
            recording.poll(time.monotonic())
            if not ready and os.getppid() != server:
                break  # another process holds the socket that the server had
    recording.finish()
    return 0
