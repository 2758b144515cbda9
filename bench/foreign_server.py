"""A gateway in front of the embedded server that spoils some of its answers: faults that load tools count as successes.

    python -m bench.foreign_server FAULT [--port 8001] [--upstream 127.0.0.1:8000]

Every third answer to a chat or completions request is spoiled. What is not spoiled passes unchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVERY, DIES_AT = 3, 4
_DONE = b"data: [DONE]\n\n"
_TOKENS = 3
_UPSTREAM_S = 60

Events = Iterable[bytes]


@dataclass(frozen=True)
class Fault:
    """A fault of an answer. `spoil` changes the events of a stream; `streams`: the answer stays an event stream."""

    title: str
    spoil: Callable[[Events], Iterator[bytes]]
    streams: bool = True


def _event(data: object) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _read(event: bytes) -> dict[str, Any]:
    return {} if event == _DONE else dict(json.loads(event.removeprefix(b"data: ")))


def _choice(event: bytes) -> dict[str, Any]:
    return next(iter(_read(event).get("choices") or []), {})


def _has_text(event: bytes) -> bool:
    choice = _choice(event)
    return bool(choice.get("text") or (choice.get("delta") or {}).get("content"))


def _with(event: bytes, text: str | None = None, **choice: object) -> bytes:
    data = _read(event)
    data["choices"][0].update(choice)
    if text is not None and "delta" in data["choices"][0]:
        data["choices"][0]["delta"] = {"content": text}
    elif text is not None:
        data["choices"][0]["text"] = text
    return _event(data)


def _begin(events: Events) -> Iterator[bytes]:
    """Yield the first three tokens, and what stands before them."""
    seen = 0
    for event in events:
        if _choice(event).get("finish_reason"):
            return
        yield event
        seen += _has_text(event)
        if seen == _TOKENS:
            return


def _ends_with(last: Callable[[bytes], Events]) -> Callable[[Events], Iterator[bytes]]:
    """Make a fault that gives three tokens and then `last` of the third one."""

    def spoil(events: Events) -> Iterator[bytes]:
        event = b""
        for event in _begin(events):
            yield event
        yield from last(event)

    return spoil


def _error(_: bytes) -> Events:
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return [_event({"error": {"message": message, "type": "InternalServerError", "code": 500}}), _DONE]


def _finished(reason: str) -> Callable[[bytes], Events]:
    return lambda event: [_with(event, "", finish_reason=reason), _DONE]


def _without_text(events: Events) -> Iterator[bytes]:
    for event in events:
        if not _has_text(event):
            yield event
        elif _choice(event).get("finish_reason"):
            yield _with(event, "")


def _twice(events: Events) -> Iterator[bytes]:
    for event in events:
        if _has_text(event) and not _choice(event).get("finish_reason"):
            yield event
        yield event


def _lost(events: Events) -> Iterator[bytes]:
    seen = 0
    for event in events:
        seen += _has_text(event)
        if not _has_text(event) or seen % 2 or _choice(event).get("finish_reason"):
            yield event


def _degenerate(events: Events) -> Iterator[bytes]:
    for event in events:
        yield _with(event, "!!!!!!") if _has_text(event) else event


def _other_model(events: Events) -> Iterator[bytes]:
    for event in events:
        yield event if event == _DONE else _event({**_read(event), "model": "tiny-fallback"})


def _json_error(events: Events) -> Iterator[bytes]:
    list(events)
    yield json.dumps({"object": "error", "message": "engine is not alive", "code": 500}).encode()


def _text_after_done(events: Events) -> Iterator[bytes]:
    last = b""
    for event in events:
        last = event if _has_text(event) else last
        yield event
    yield _with(last, " and a rest of it", finish_reason=None)


class _Exchanged:
    """Gives each spoiled answer the text of the spoiled one before it: of another request."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, events: Events) -> Iterator[bytes]:
        own = list(events)
        texts = [str(_choice(e).get("text") or _choice(e)["delta"]["content"]) for e in own if _has_text(e)]
        with self._lock:
            other, self._before = self._before or texts[::-1], texts
        left = iter(other)
        for event in own:
            yield _with(event, next(left, "")) if _has_text(event) else event


FAULTS: Mapping[str, Fault] = {
    "stream_error": Fault("an error event after three tokens, then [DONE]", _ends_with(_error)),
    "finish_error": Fault("`finish_reason` is `error` after three tokens", _ends_with(_finished("error"))),
    "finish_abort": Fault("`finish_reason` is `abort` after three tokens", _ends_with(_finished("abort"))),
    "cut": Fault("the stream just ends after three tokens", _ends_with(lambda _: [])),
    "cut_with_done": Fault("[DONE] after three tokens, without `finish_reason`", _ends_with(lambda _: [_DONE])),
    "json_error": Fault("status 200 with an error object in place of a stream", _json_error, streams=False),
    "empty": Fault("no text; usage counts the tokens", _without_text),
    "lost": Fault("every second token is missing; usage counts it", _lost),
    "twice": Fault("every token comes twice; usage counts it once", _twice),
    "other_text": Fault("the text of another request", _Exchanged()),
    "degenerate": Fault("only exclamation marks", _degenerate),
    "after_done": Fault("text after [DONE]", _text_after_done),
    "other_model": Fault("another model answers", _other_model),
}
"""Faults by name. `death` is no fault of an answer: see `Gateway`."""


@dataclass
class Gateway:
    """What the gateway passes on, and to whom. With `second`, an engine that died is replaced by the second one, which is
    asked again: no client sees the death. `kill` kills the first engine; it is called at the fourth question.
    """

    upstream: tuple[str, int]
    fault: Fault | None = None
    second: tuple[str, int] | None = None
    kill: Callable[[], None] | None = None
    posts: int = 0
    spoiled: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_hit(self) -> bool:
        """Count a question; True if its answer is to be spoiled."""
        with self.lock:
            self.posts += 1
            if self.posts == DIES_AT and self.kill is not None:
                self.kill()
            hit = self.fault is not None and self.posts % EVERY == 0
            self.spoiled += hit
            return hit


def events_of(answer: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the events of a stream, each with its blank line."""
    event = b""
    for line in answer:
        event += line
        if line in (b"\n", b"\r\n"):
            yield event
            event = b""
    if event:
        yield event


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gateway: Gateway

    def do_GET(self) -> None:
        self._pass(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        gateway = self.gateway
        is_question = self.path.endswith("/completions")
        self._pass(body, gateway.fault if is_question and gateway.is_hit() else None)

    def log_message(self, *_: object) -> None:
        """Say nothing: the requests are many."""

    def _pass(self, body: bytes | None, fault: Fault | None = None) -> None:
        if self.gateway.second is not None:
            self._pass_whole(body)
            return
        with contextlib.closing(self._ask(self.gateway.upstream, body)) as connection:
            answer = connection.getresponse()
            streams = (answer.getheader("content-type") or "").startswith("text/event-stream")
            if fault is None or not streams:
                self._send(answer.status, answer, iter(lambda: answer.read1(1 << 16), b""))
            else:
                kind = None if fault.streams else "application/json"
                self._send(answer.status, answer, fault.spoil(events_of(answer)), kind)

    def _pass_whole(self, body: bytes | None) -> None:
        """Read the whole answer, and ask the second engine if the first one gave none that is right."""
        whole = b""
        for upstream in (self.gateway.upstream, self.gateway.second):
            assert upstream is not None
            with contextlib.suppress(OSError, http.client.HTTPException):
                with contextlib.closing(self._ask(upstream, body)) as connection:
                    answer = connection.getresponse()
                    whole = answer.read()
                if answer.status < 500 and b'"error"' not in whole:
                    break
        self._send(answer.status, answer, [whole])

    def _ask(self, upstream: tuple[str, int], body: bytes | None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*upstream, timeout=_UPSTREAM_S)
        names = ("content-type", "accept", "authorization")
        headers = {name: value for name in names if (value := self.headers.get(name))}
        connection.request(self.command, self.path, body, headers)
        return connection

    def _send(
        self, status: int, answer: http.client.HTTPResponse, pieces: Iterable[bytes], kind: str | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind or answer.getheader("content-type") or "application/octet-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""


@contextlib.contextmanager
def served(gateway: Gateway, port: int = 0) -> Iterator[int]:
    """Serve the gateway on loopback; gives its port."""
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"gateway": gateway}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--upstream", default="127.0.0.1:8000")
    args = parser.parse_args()
    host, _, port = args.upstream.rpartition(":")
    with served(Gateway((host, int(port)), FAULTS[args.fault]), args.port) as listening:
        print(f"http://127.0.0.1:{listening}: {FAULTS[args.fault].title}")
        threading.Event().wait()


if __name__ == "__main__":
    main()
