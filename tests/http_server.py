"""HTTP servers of tests: a function or a handler answers; nothing is logged."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = (" red", " green", " blue", " white", " black", " grey")
"""Words of made-up answers, which differ from each other."""


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content or b"null")


class Handler(BaseHTTPRequestHandler):
    """A handler of HTTP/1.1 with answers of a known length, and streams of events in chunks."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def reply(self, asked: Asked) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.reply(Asked(self.command, self.path, dict(self.headers), content))

    def do_POST(self) -> None:
        self.do_GET()

    def do_OPTIONS(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: object = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send bytes and text as they are, anything else as JSON."""
        text = body if isinstance(body, bytes | str) else json.dumps(body)
        data = text.encode() if isinstance(text, str) else text
        kind = "application/json" if data[:1] in (b"{", b"[") else "text/plain"
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})})
        self.wfile.write(data)

    def begin_stream(self, headers: Mapping[str, str] | None = None) -> None:
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **(headers or {})})

    def event(self, data: object) -> None:
        frame = f"data: {data if isinstance(data, str) else json.dumps(data, separators=(',', ':'))}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))

    def end_stream(self) -> None:
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Ignore clients that leave."""


@contextmanager
def serving(handler: type[Handler], port: int = 0) -> Iterator[str]:
    """Serve until the end of the block; gives the URL, with a free port for 0."""
    httpd = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


@contextmanager
def answering(reply: Callable[[Asked], tuple[int, object]]) -> Iterator[str]:
    """A server whose status and body for a request are those of a function."""

    class Replying(Handler):
        def reply(self, asked: Asked) -> None:
            self.answer(*reply(asked))

    with serving(Replying) as url:
        yield url
