"""Chat server that answers what a test wants, with an OpenAI front."""

import itertools
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.http_server import WORDS, Asked, Handler, serving

Answer = Callable[[int, dict[str, Any]], tuple[int, list[dict[str, Any]]]]
"""Gives (status, events) for the number of a chat request and its body; an event is the JSON of one chunk."""
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
    found = [chunk(rng.choice(WORDS)) for _ in range(tokens)]
    found.append(chunk(finish=finish))
    if prompt is not None:
        total = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        found.append({"choices": [], "usage": total})
    return found


class RawServer:
    """Serves /health, /v1/models and chat until it is closed."""

    def __init__(self, reply: Answer) -> None:
        numbers = itertools.count(1)

        class Chat(Handler):
            def reply(self, asked: Asked) -> None:
                if asked.path == "/health":
                    self.answer(200, {})
                elif asked.path == "/v1/models":
                    self.answer(200, {"object": "list", "data": [{"id": "raw", "object": "model"}]})
                elif asked.path == "/v1/chat/completions":
                    self.chat(asked.json())
                else:
                    self.answer(404, {"error": {"message": "no such page", "type": "not_found"}})

            def chat(self, body: dict[str, Any]) -> None:
                status, events = reply(next(numbers), body)
                if status != 200:
                    self.answer(status, events[0])
                elif body.get("stream"):
                    self.begin_stream()
                    for event in events:
                        self.event(event)
                    self.end_stream()
                else:
                    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
                    message = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                    usage = [e["usage"] for e in events if "usage" in e]
                    whole = {"object": "chat.completion", "choices": [message]}
                    self.answer(200, {**whole, "usage": usage[0]} if usage else whole)

        running = ExitStack()
        self.url = running.enter_context(serving(Chat))
        self.close = running.close
