"""A chat server of another make, with faults chosen by a test."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import http_server
from tests.http_server import WORDS, Asked, Handler

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
        refuses: fields that it refuses with 400, each with what it says.
        fails_on: text in a request that is answered with 500.
        instead: status, page and headers in place of the n-th stream, which was asked for so many seconds after the first.
        token: text of the i-th token of the n-th stream; JSON is an event that ends the stream. None: words by the prompt.
        token_s: time of one token.
        headers: headers of every answer.
        asked: requests by path; a body with an image counts as `image`.
        bodies: those of the requests to the chat endpoint.
        streams_s: when each stream was asked for, from the first one.
    """

    pages: dict[str, tuple[int, str]] = field(default_factory=dict)
    images: str = "counted"
    chat: bool = True
    refuses: dict[str, str] = field(default_factory=dict)
    fails_on: str = ""
    instead: Callable[[int, float], tuple[Any, ...] | None] = lambda _n, _s: None
    token: Callable[[int, float, int], str | dict[str, Any]] | None = None
    token_s: float = 0.002
    first_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    log: Path | None = None
    asked: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    streams_s: list[float] = field(default_factory=list)
    begun_s: float = 0.0
    longest: int = 0
    url: str = ""

    def note_stream(self) -> tuple[int, float]:
        """Number of a stream, and when it was asked for."""
        self.begun_s = self.begun_s or time.monotonic()
        self.streams_s.append(time.monotonic() - self.begun_s)
        return len(self.streams_s), self.streams_s[-1]

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
    class ForeignHandler(Handler):
        def reply(self, asked: Asked) -> None:
            server.asked[self.path] += 1
            if asked.method == "GET":
                self.answer(*server.pages.get(self.path, (404, '{"detail":"Not Found"}')), server.headers)
                return
            server.longest = max(server.longest, len(asked.content))
            body = asked.json()
            if self.path != "/v1/chat/completions" or not server.chat:
                self.answer(404, '{"detail":"Not Found"}')
                return
            server.bodies.append(body)
            messages = body["messages"]
            has_image = any(isinstance(m["content"], list) and len(m["content"]) > 1 for m in messages)
            server.asked["image"] += has_image
            hit = server.fails_on and server.fails_on.encode() in asked.content
            if hit or (has_image and server.images in ("fails", "cut")):
                self._fail()
            elif refused := next((text for name, text in server.refuses.items() if name in body), None):
                self.answer(400, {"error": {"message": refused, "type": "invalid_request_error"}})
            elif has_image and server.images == "refused":
                self.answer(400, '{"error": {"message": "images are not supported"}}')
            else:
                self._complete(body, server.prompt_tokens(messages, stream=bool(body.get("stream"))))

        def _fail(self) -> None:
            if server.log is not None:
                with server.log.open("a") as log:
                    log.write(_TRACEBACK)
            if server.images == "cut":
                self.close_connection = True
                self.connection.close()
            else:
                self.answer(500, "Internal Server Error", server.headers)

        def _complete(self, body: dict[str, Any], prompt: int) -> None:
            tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            words = random.Random(json.dumps(body["messages"])).choices(WORDS, k=tokens)
            base = {"id": "chatcmpl-1", "created": int(time.time()), "model": "foreign"}
            time.sleep(server.first_s)
            if not body.get("stream"):
                message = {"role": "assistant", "content": "".join(words)}
                choice = {"index": 0, "message": message, "finish_reason": "length"}
                whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
                self.answer(200, whole, server.headers)
                return
            number, at_s = server.note_stream()
            if (page := server.instead(number, at_s)) is not None:
                self.answer(*page)
                return
            self.begin_stream(server.headers)
            chunk = {**base, "object": "chat.completion.chunk"}
            for i, word in enumerate(words):
                time.sleep(server.token_s)
                text = word if server.token is None else server.token(number, at_s, i)
                if not isinstance(text, str):
                    self.event(text)
                    self.end_stream()
                    return
                end = "length" if i == tokens - 1 else None
                self.event({**chunk, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}]})
            self.event({**chunk, "choices": [], "usage": usage})
            self.end_stream()

    with http_server.serving(ForeignHandler, port) as server.url:
        yield server
