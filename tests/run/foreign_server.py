"""A chat server of another make, with faults chosen by a test."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_IMAGE_TOKENS = 256
_TRACEBACK = """\
ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/opt/py3/lib/python3.10/site-packages/lmdeploy/serve/openai/api_server.py", line 418, in chat_completions_v1
    async for res in result_generator:
  File "/opt/py3/lib/python3.10/site-packages/lmdeploy/model.py", line 205, in messages2prompt
    content = message['content'][0]['text']
KeyError: 'text'
"""


@dataclass
class ForeignServer:
    """Properties of the server, and what it was asked.

    Attributes:
        pages: status and body of GET paths; others answer 404.
        images: `counted`, `ignored`, `fails` (500), `refused` (400), `cut` (no answer) or `uncounted_in_streams`.
        chat: it has the chat endpoint.
        fails_on: text in a request that is answered with 500.
        token_s: time of one token.
        headers: headers of every answer.
        asked: requests by path; a body with an image counts as `image`.
    """

    pages: dict[str, tuple[int, str]] = field(default_factory=dict)
    images: str = "counted"
    chat: bool = True
    fails_on: str = ""
    token_s: float = 0.002
    first_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    log: Path | None = None
    asked: Counter[str] = field(default_factory=Counter)
    longest: int = 0
    url: str = ""

    def prompt_tokens(self, messages: list[dict[str, Any]], *, stream: bool) -> int:
        """Count blanks as tokens, and each image as a constant."""
        tokens = 4
        for message in messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                if part["type"] == "text":
                    tokens += len(part["text"].split())
                elif self.images == "counted" or (self.images == "uncounted_in_streams" and not stream):
                    tokens += _IMAGE_TOKENS
        return tokens


MODELS = json.dumps({"object": "list", "data": [{"id": "foreign", "object": "model", "owned_by": "somebody"}]})
PAGES = {"/v1/models": (200, MODELS), "/health": (200, "")}


@contextmanager
def serving(server: ForeignServer, port: int = 0) -> Iterator[ForeignServer]:
    """Serve until the end of the block; port 0 is a free one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None:
            """Write no access log."""

        def do_GET(self) -> None:
            server.asked[self.path] += 1
            status, body = server.pages.get(self.path, (404, '{"detail":"Not Found"}'))
            self._answer(status, body)

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            server.longest = max(server.longest, length)
            sent = self.rfile.read(length)
            body = json.loads(sent or b"{}")
            server.asked[self.path] += 1
            if self.path != "/v1/chat/completions" or not server.chat:
                self._answer(404, '{"detail":"Not Found"}')
                return
            messages = body["messages"]
            has_image = any(isinstance(m["content"], list) and len(m["content"]) > 1 for m in messages)
            server.asked["image"] += has_image
            hit = server.fails_on and server.fails_on.encode() in sent
            if hit or (has_image and server.images in ("fails", "cut")):
                self._fail()
                return
            if has_image and server.images == "refused":
                self._answer(400, '{"error": {"message": "images are not supported"}}')
                return
            prompt = server.prompt_tokens(messages, stream=bool(body.get("stream")))
            self._complete(body, prompt)

        def _fail(self) -> None:
            if server.log is not None:
                with server.log.open("a") as log:
                    log.write(_TRACEBACK)
            if server.images == "cut":
                self.close_connection = True
                self.connection.close()
            else:
                self._answer(500, "Internal Server Error")

        def _complete(self, body: dict[str, Any], prompt: int) -> None:
            tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            base = {"id": "chatcmpl-1", "created": int(time.time()), "model": "foreign"}
            time.sleep(server.first_s)
            if not body.get("stream"):
                message = {"role": "assistant", "content": " word" * tokens}
                choice = {"index": 0, "message": message, "finish_reason": "length"}
                self._answer(
                    200, json.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
                )
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            chunk = {**base, "object": "chat.completion.chunk"}
            for n in range(tokens):
                time.sleep(server.token_s)
                end = "length" if n == tokens - 1 else None
                self._event({**chunk, "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": end}]})
            self._event({**chunk, "choices": [], "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _event(self, data: dict[str, Any]) -> None:
            self._chunk(b"data: " + json.dumps(data).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if body.startswith("{") else "text/plain")
            self.send_header("Content-Length", str(len(body.encode())))
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_args: object) -> None:
            """Ignore clients that leave."""

    httpd = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
