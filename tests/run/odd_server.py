"""A chat and embeddings server whose texts are those of a function of the prompt, the limit of tokens and the number of
the request. It has no logprobs; words are tokens.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests import http_server
from tests.http_server import Asked, Handler

MODELS = {"object": "list", "data": [{"id": "odd", "object": "model"}]}


@dataclass(frozen=True)
class Prompt:
    """A request as the text function sees it: `n` counts requests; `body` is its JSON."""

    text: str
    most: int
    n: int
    body: dict[str, Any]


Write = Callable[[Prompt], str | tuple[str, str]]
"""The text of an answer, or the text and its finish_reason; an answer ends with `stop`."""


def text_of(content: Any) -> str:
    parts = [{"text": content}] if isinstance(content, str) else content
    return " ".join(part.get("text", "") for part in parts)


@contextmanager
def odd_server(write: Write, vector: Callable[[str], list[float]] | None = None) -> Iterator[str]:
    numbers = itertools.count()

    class OddHandler(Handler):
        def reply(self, asked: Asked) -> None:
            if asked.path == "/health":
                self.answer(200, {})
            elif asked.path == "/v1/models":
                self.answer(200, MODELS)
            elif asked.path == "/v1/embeddings" and vector is not None:
                given = asked.json()["input"]
                texts = [given] if isinstance(given, str) else given
                data = [{"object": "embedding", "index": i, "embedding": vector(t)} for i, t in enumerate(texts)]
                n = sum(len(t.split()) for t in texts)
                usage = {"prompt_tokens": n, "total_tokens": n}
                self.answer(200, {"object": "list", "model": "odd", "data": data, "usage": usage})
            elif asked.path == "/v1/chat/completions":
                self._chat(asked.json())
            else:
                self.answer(404, {"error": {"message": "no such page", "type": "not_found"}})

        def _chat(self, body: dict[str, Any]) -> None:
            prompt = "\n".join(text_of(m["content"]) for m in body["messages"])
            most = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
            n = next(numbers)
            written = write(Prompt(prompt, most, n, body))
            text, finish = (written, "stop") if isinstance(written, str) else written
            words = [w if i == 0 else f" {w}" for i, w in enumerate(text.split(" "))]
            tokens, counted = min(most, max(len(words), 1)), 4 + len(prompt.split())
            usage = {"prompt_tokens": counted, "completion_tokens": tokens, "total_tokens": counted + tokens}
            base = {"id": f"chatcmpl-{n}", "model": "odd", "created": 1}
            if not body.get("stream"):
                choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
                self.answer(200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
                return
            self.begin_stream()
            chunk = {**base, "object": "chat.completion.chunk"}
            for word in words:
                if word:
                    delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                    self.event({**chunk, "choices": [delta]})
            self.event({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            if (body.get("stream_options") or {}).get("include_usage"):
                self.event({**chunk, "choices": [], "usage": usage})
            self.end_stream()

    with http_server.serving(OddHandler) as url:
        yield url


def cut(text: str, most: int) -> str | tuple[str, str]:
    """A text of at most so many words, as a server cuts it."""
    words = text.split(" ")
    return text if len(words) <= most else (" ".join(words[:most]), "length")
