"""Chat server on raw sockets that answers what a test wants, with an OpenAI front."""

import contextlib
import itertools
import json
import random
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any

Answer = Callable[[int, dict[str, Any]], tuple[int, list[dict[str, Any]]] | Iterable[bytes]]
"""Gives (status, events) for the number of a chat request and its body; an event is the JSON of one chunk.

Else it gives the bytes of the whole response, after which the connection is closed.
"""

MODEL = "raw"
_WORDS = (" red", " green", " blue", " white", " black", " grey")
_answers = itertools.count()


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


def answer(tokens: int, prompt: int | None = 8, finish: str = "stop") -> list[dict[str, Any]]:
    """Events of an answer of so many tokens, unlike all before; `prompt` None: without usage."""
    rng = random.Random(next(_answers))
    found = [chunk(rng.choice(_WORDS)) for _ in range(tokens)]
    found.append(chunk(finish=finish))
    if prompt is not None:
        total = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        found.append({"choices": [], "usage": total})
    return found


class RawServer(socketserver.ThreadingTCPServer):
    """Serves /health, /v1/models and chat; one connection for each request."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, reply: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply, self.asked, self._lock = reply, 0, threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def number(self) -> int:
        with self._lock:
            self.asked += 1
            return self.asked

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(socketserver.StreamRequestHandler):
    server: RawServer

    def handle(self) -> None:
        line = self.rfile.readline().decode("latin-1").split()
        length = 0
        while (header := self.rfile.readline().decode("latin-1").strip()) != "":
            name, _, value = header.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        body = self.rfile.read(length)
        if len(line) < 2:
            return
        if line[1] == "/health":
            self._send(200, b"{}")
        elif line[1] == "/v1/models":
            self._send(200, json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode())
        elif line[:2] == ["POST", "/v1/chat/completions"]:
            self._chat(json.loads(body))
        else:
            self._send(404, b'{"error": {"message": "no such page", "type": "not_found"}}')

    def _chat(self, asked: dict[str, Any]) -> None:
        found = self.server.reply(self.server.number(), asked)
        if not isinstance(found, tuple):
            with contextlib.suppress(OSError):  # the client went first
                for piece in found:
                    self.wfile.write(piece)
            return
        status, events = found
        if status != 200:
            self._send(status, json.dumps(events[0]).encode())
        elif asked.get("stream"):
            lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            self._send(200, lines.encode(), "text/event-stream")
        else:
            text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
            message = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            usage = next((e["usage"] for e in events if "usage" in e), None)
            whole = {"object": "chat.completion", "choices": [message], **({"usage": usage} if usage else {})}
            self._send(200, json.dumps(whole).encode())

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.wfile.write(head.encode() + body)
