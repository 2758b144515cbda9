"""Record the requests of a vLLM server from inside, as ASGI middleware.

`vllm serve --middleware loadchaos_vllm.Recorder` loads `Recorder`. It counts bytes and tokens, and sends them with the
bodies of requests to a process of its own, `loadchaos record`, which makes the shapes and writes the ring. Whatever fails
here is counted, and the server continues.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, MutableMapping
from typing import Any, Callable, cast

OPTIONS, COMMAND = "LOADCHAOS_RECORD", "LOADCHAOS_COMMAND"
PROTOCOL = 1
MAX_BODY_BYTES = 32 << 20
"""Maximum size of a recorded body; of a larger one only the length is recorded."""
MAX_WAITING_BYTES = 64 << 20
_MORE_FOR_ROWS = 8 << 20
PROGRESS_S = 0.5
FLUSH_S = 0.02
CLOSE_S = 3.0
_FIRST_RESTART_S, _LAST_RESTART_S, _SHORT_LIFE_S, _MOST_SHORT_LIVES = 1.0, 30.0, 10.0, 3
_TAIL_BYTES = 8192
_SMALL_BYTES = 128
_MOST_LOGGED = 20
_SECRET_HEADERS = {b"authorization", b"x-api-key", b"api-key", b"proxy-authorization", b"cookie"}

# Kinds of frames, as in loadchaos/recorder/frames.py.
SETUP, BEGIN, BODY, BODY_END, PROGRESS, GAP, ANSWER, CLOSE = 1, 2, 3, 4, 6, 8, 9, 10
_HEAD = struct.Struct("<IBQ")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def log_line(text: str) -> None:
    """Write one line to the server's log."""
    sys.stderr.write(f"loadchaos-record: {text}\n")
    sys.stderr.flush()


def _frame(kind: int, number: int, data: bytes) -> bytes:
    return _HEAD.pack(len(data), kind, number) + data


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


class AsgiExchange:
    """One request and its answer, as the middleware sees them."""

    __slots__ = (
        "at_ns",
        "body_bytes",
        "ended",
        "events",
        "first_ns",
        "gap_ns",
        "got_bytes",
        "last_ns",
        "left",
        "lost",
        "number",
        "path",
        "post",
        "sent_whole",
        "sse",
        "status",
        "tail",
        "tokens",
    )  # fmt: skip

    def __init__(self, number: int, scope: Message) -> None:
        self.number, self.at_ns = number, time.monotonic_ns()
        self.path = str(scope.get("path", ""))
        self.post = scope.get("method") == "POST"
        self.body_bytes = self.got_bytes = self.status = self.tokens = self.events = 0
        self.first_ns = self.last_ns = self.gap_ns = 0
        self.ended = self.left = self.lost = self.sent_whole = self.sse = False
        self.tail: tuple[bytes, bytes, bytes] = (b"", b"", b"")

    def start(self, message: Message) -> None:
        """Read the head of the answer."""
        self.status = int(message["status"])
        for name, value in message.get("headers") or ():
            if name.lower() == b"content-type":
                self.sse = value.startswith(b"text/event-stream")

    def feed(self, data: bytes) -> None:
        """Count the events of a piece of the answer.

        A first event without content only names the role.
        """
        first, second, before = self.tail
        self.got_bytes += len(data)
        if len(data) >= _TAIL_BYTES:
            self.tail = (b"", b"", data[-_TAIL_BYTES:])
        elif len(before) >= _SMALL_BYTES:
            self.tail = (second, before, data)
        else:
            self.tail = (first, second, before + data)
        now = time.monotonic_ns()
        if not self.sse:
            self.first_ns = self.first_ns or now
            return
        ended = (before[-1:] + data).count(b"\n\n") or (before[-2:] + data).count(b"\n\r\n")
        if not ended:
            return
        named_role = self.events == 0 and b'"content":""' in data
        self.events += ended
        ended -= named_role
        if not ended:
            return
        self.tokens += ended
        if self.first_ns:
            self.gap_ns = max(self.gap_ns, now - self.last_ns)
        else:
            self.first_ns = now
        self.last_ns = now

    def row(self, how: str, *, errored: bool) -> dict[str, Any]:
        """Make the row of the end."""
        row: dict[str, Any] = {
            "how": how, "post": self.post, "path": self.path, "begun_ns": self.at_ns, "at_ns": time.monotonic_ns(),
            "status": self.status, "sse": self.sse, "tokens": self.tokens, "events": self.events,
            "first_ns": self.first_ns, "gap_ns": self.gap_ns, "bytes": self.got_bytes, "errored": errored,
        }  # fmt: skip
        if self.post or self.status >= 500:
            row["tail"] = b"".join(self.tail)[-_TAIL_BYTES:].decode("latin-1")
        return {k: v for k, v in row.items() if v}


class RecordingLink(asyncio.Protocol):
    """Connection to the recording process.

    It never waits. Where that process falls behind, bodies are lost first, then rows; both are counted. It is started
    again when it has ended, and given up after three short lives.
    """

    def __init__(self, options: list[str], command: list[str], count_error: Callable[[Exception], None]) -> None:
        self._argv = [*command, "record", *options]
        self._count_error = count_error
        self._setup = {"protocol": PROTOCOL, "key": os.urandom(32).hex(), "recording": os.urandom(4).hex()}
        self._setup.update(pid=os.getpid(), version=_vllm_version())
        self._transport: asyncio.WriteTransport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._lost = self._number = self._short_lives = 0
        self._began_s = 0.0
        self._flushing = False
        self._closing = False
        self._connected, self._ended = asyncio.Event(), asyncio.Event()
        self._open: dict[int, AsgiExchange] = {}
        self._known: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.active = True

    @property
    def pid(self) -> int | None:
        """Process id of the recording process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the recording process, and again when it ends."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._launch()
            while self.active:
                await asyncio.sleep(PROGRESS_S)
                if self._process is not None and self._process.poll() is not None and not self._closing:
                    await self._again(self._process.returncode)
                else:
                    self._progress()
        except Exception as e:  # noqa: BLE001 - the server continues without a recording
            self._give_up(_place(e))

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [*self._argv, "--middleware", str(theirs.fileno())]
            environment = {k: v for k, v in os.environ.items() if k != OPTIONS}
            if argv[0] != sys.executable:
                for name in ("PYTHONPATH", "PYTHONHOME"):  # they are for this Python
                    environment.pop(name, None)
            self._process = subprocess.Popen(  # noqa: ASYNC220 - some milliseconds, by vfork
                argv, pass_fds=[theirs.fileno()], env=environment, start_new_session=True, stdin=subprocess.DEVNULL
            )
        self._began_s = time.monotonic()
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)

    async def _again(self, code: int) -> None:
        short = time.monotonic() - self._began_s < _SHORT_LIFE_S
        self._short_lives = self._short_lives + 1 if short else 0
        if self._short_lives >= _MOST_SHORT_LIVES:
            self._give_up(f"the recording process ended {_MOST_SHORT_LIVES} times, with code {code}")
            return
        log_line(f"the recording process ended with code {code}; it is started again, and the server continues")
        await asyncio.sleep(min(_LAST_RESTART_S, _FIRST_RESTART_S * 2**self._short_lives))
        await self._launch()

    def _give_up(self, why: str) -> None:
        self.active = False
        self._waiting.clear()
        self._open.clear()
        log_line(f"off: {why}; the server continues without a recording")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Receive the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(_frame(SETUP, 0, _json(self._setup)))
        self._flush()
        self._connected.set()
        self._ended.clear()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - its signature is asyncio's
        """Receive the end of the connection."""
        self._transport = None
        self._connected.clear()
        self._ended.set()
        for exchange in self._open.values():
            exchange.lost = True

    async def close(self, *, errored: bool) -> None:
        """Send what is left, and wait a short time until it is written."""
        self._closing = True
        if self._process is None or self._transport is None:
            await asyncio.wait_for(self._connected.wait(), CLOSE_S)
        if self._task is not None:
            self._task.cancel()
        self._progress()
        self._send(CLOSE, 0, _json({"at_ns": time.monotonic_ns(), "errored": errored}))
        self._flush()
        if self._transport is not None:
            self._transport.write_eof()
            await asyncio.wait_for(self._ended.wait(), CLOSE_S)
        if self._process is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._process.wait, CLOSE_S)

    def begin(self, scope: Message) -> AsgiExchange:
        """Send the start of a request."""
        self._number += 1
        exchange = AsgiExchange(self._number, scope)
        if exchange.post:
            secrets = [v.decode("latin-1") for n, v in scope.get("headers") or () if n.lower() in _SECRET_HEADERS]
            self._open[exchange.number] = exchange
            self._send(
                BEGIN, exchange.number, _json({"at_ns": exchange.at_ns, "path": exchange.path, "secrets": secrets})
            )
        return exchange

    def request(self, exchange: AsgiExchange, message: Message) -> None:
        """Send a piece of the body of a request, if it is not too large."""
        if message["type"] == "http.disconnect":
            exchange.left = True
            return
        if not exchange.post or exchange.sent_whole or message["type"] != "http.request":
            return
        data = message.get("body", b"")
        exchange.body_bytes += len(data)
        if data and not exchange.lost:
            if exchange.body_bytes > MAX_BODY_BYTES or self._unsent() + len(data) > MAX_WAITING_BYTES:
                exchange.lost = True
            else:
                self._send(BODY, exchange.number, bytes(data))
        if not message.get("more_body", False):
            self._body_end(exchange)

    def _body_end(self, exchange: AsgiExchange) -> None:
        exchange.sent_whole = True
        self._send(BODY_END, exchange.number, _json({"bytes": exchange.body_bytes, "lost": exchange.lost}))
        self._flush()  # before the server sees the request: it may be the one that kills

    def answer(self, exchange: AsgiExchange, message: Message) -> None:
        """Count a piece of the answer."""
        if message["type"] == "http.response.start":
            exchange.start(message)
        elif message["type"] == "http.response.body":
            if body := message.get("body"):
                exchange.feed(body)
            if not message.get("more_body", False):
                self.end(exchange, "complete", errored=False)

    def end(self, exchange: AsgiExchange, how: str, *, errored: bool) -> None:
        """Send the outcome of a request, once."""
        if exchange.ended:
            return
        exchange.ended = True
        if exchange.post and not exchange.sent_whole:
            exchange.lost = True
            self._body_end(exchange)
        self._open.pop(exchange.number, None)
        self._known.pop(exchange.number, None)
        if exchange.post or exchange.status >= 500:
            self._send(ANSWER, exchange.number, _json(exchange.row(how, errored=errored)))

    def _progress(self) -> None:
        """Send the tokens of open requests, so that they survive a kill."""
        tokens = {str(n): e.tokens for n, e in self._open.items() if e.tokens != self._known.get(n, 0)}
        if tokens:
            self._known.update((int(n), count) for n, count in tokens.items())
            self._send(PROGRESS, 0, _json({"at_ns": time.monotonic_ns(), "tokens": tokens}))

    def _unsent(self) -> int:
        held = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._waiting_bytes + held

    def _send(self, kind: int, number: int, data: bytes) -> None:
        if not self.active:
            return
        if self._unsent() > MAX_WAITING_BYTES + _MORE_FOR_ROWS:
            self._lost += 1
            return
        if self._lost:
            row = {
                "at_ns": time.monotonic_ns(),
                "rows": self._lost,
                "why": "the recording process fell behind or ended",
            }
            self._waiting.append(_frame(GAP, 0, _json(row)))
            self._lost = 0
        self._waiting.append(_frame(kind, number, data))
        self._waiting_bytes += len(data)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None or not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        try:
            self._transport.write(b"".join(waiting))
        except Exception as e:  # noqa: BLE001 - the server continues
            self._count_error(e)


class Recorder:
    """ASGI middleware that records requests; options in LOADCHAOS_RECORD.

    Attributes:
        errors: Errors of the recorder itself. The first one of each kind stands in the log.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._link: RecordingLink | None = None
        self._known_errors: set[str] = set()
        self._state: Any = None
        self.errors = 0
        self._begun = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one scope of ASGI."""
        if not self._begun:
            self._begun = True
            self._begin()
        link = self._link
        if scope["type"] == "lifespan" and link is not None:
            self._state = scope.get("app")
            try:
                await self._app(scope, receive, send)
            finally:
                await self._close(link)
        elif scope["type"] == "http" and link is not None and link.active:
            await self._record(link, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _record(self, link: RecordingLink, scope: Message, receive: Receive, send: Send) -> None:
        try:
            exchange = link.begin(scope)
        except Exception as e:  # noqa: BLE001 - the request is served in any case
            self._count_error(e)
            await self._app(scope, receive, send)
            return

        async def receive_and_note() -> Message:
            message = await receive()
            try:
                link.request(exchange, message)
            except Exception as e:  # noqa: BLE001
                self._count_error(e)
            return message

        async def send_and_note(message: Message) -> None:
            try:
                await send(message)
            except OSError:
                exchange.left = True
                raise
            try:
                link.answer(exchange, message)
            except Exception as e:  # noqa: BLE001
                self._count_error(e)

        how = "cut"
        try:
            await self._app(scope, receive_and_note, send_and_note)
        except Exception:
            how = "raised"
            raise
        finally:
            try:
                if not exchange.ended:
                    link.end(exchange, "left" if exchange.left else how, errored=self._errored(scope))
            except Exception as e:  # noqa: BLE001
                self._count_error(e)

    def _begin(self) -> None:
        try:
            options = shlex.split(os.environ.get(OPTIONS, ""))
            if not options:
                log_line(f"off: {OPTIONS} is not set; give it --out FOLDER, and other options of loadchaos record")
                return
            command = find_command(os.environ.get(COMMAND, ""))
            if command is None:
                log_line(
                    f"off: the command loadchaos was not found; {COMMAND} names it, such as /opt/loadchaos/bin/loadchaos"
                )
                return
            link = RecordingLink(options, command, self._count_error)
            link.start()
            self._link = link
        except Exception as e:  # noqa: BLE001 - the server starts without a recording
            log_line(f"off: {_place(e)}; the server continues without a recording")

    async def _close(self, link: RecordingLink) -> None:
        try:
            await link.close(errored=self._errored({"app": self._state}))
        except Exception as e:  # noqa: BLE001 - the server ends in any case
            self._count_error(e)

    def _errored(self, scope: Message) -> bool:
        """True if vLLM's engine client says that its engine is dead."""
        client = getattr(getattr(scope.get("app"), "state", None), "engine_client", None)
        return bool(getattr(client, "errored", False))

    def _count_error(self, e: Exception) -> None:
        """Count an error; log its kind and place, as its text may hold content of a request."""
        self.errors += 1
        what = _place(e)
        if what not in self._known_errors and len(self._known_errors) < _MOST_LOGGED:
            self._known_errors.add(what)
            log_line(f"error of the recorder: {what}; the server continues")


def find_command(given: str) -> list[str] | None:
    """Command line of loadchaos: the given one, that on the PATH, or that of this Python."""
    if given:
        return shlex.split(given)
    found = shutil.which("loadchaos")
    if found:
        return [found]
    return [sys.executable, "-m", "loadchaos"] if importlib.util.find_spec("loadchaos") else None


def _place(e: Exception) -> str:
    lines = [line for _, line in traceback.walk_tb(e.__traceback__)]
    return f"{type(e).__name__} in line {lines[-1] if lines else 0}"


def _vllm_version() -> str:
    """Version of the vLLM that loads this; "" without one."""
    from importlib import metadata

    found = {d.metadata["Name"]: d.version for d in metadata.distributions(name="vllm")}
    return next(iter(found.values()), "")
