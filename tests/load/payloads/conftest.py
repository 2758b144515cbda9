"""Fixtures.

Facts with words of unequal cost, a token counter, plain steps.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.core.model import Facts, Output, Step, TextFacts
from loadchaos.load.wire.request import Request

WORDS = tuple((f" {w}", 1 + i % 3) for i, w in enumerate(("the", "of", "and", "to", "in", "is", "that", "it", "was")))


@pytest.fixture
def facts() -> Facts:
    return Facts(
        base_url="http://x",
        admin_url="http://x",
        dialect="vllm",
        model='m"1',
        version="0.18.0",
        max_model_len=4096,
        images=True,
        image_tokens={"64x64": 66},
        text=TextFacts(9, WORDS, " the", "tokenize"),
    )


def body_of(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request.body)
    return body


def messages(request: Request) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body_of(request)["messages"]
    return found


@pytest.fixture
def counted() -> Callable[[Request], int]:
    """Prompt tokens of a request, counted as the server of `facts` does."""
    costs = {w.strip(): n for w, n in WORDS}

    def count(request: Request) -> int:
        content = json.loads(request.body)["messages"][0]["content"]
        parts: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": content}]
        text = "".join(p["text"] for p in parts if p["type"] == "text")
        images = sum(p["type"] == "image_url" for p in parts)
        return int(9 + sum(costs[w] for w in text.split()) + 66 * images)

    return count


Steps = Callable[..., Step]


@pytest.fixture
def step() -> Steps:
    def make(payload: dict[str, Any], ordinal: int = 0, **more: Any) -> Step:
        values: dict[str, Any] = {
            "index": ordinal, "phase": 0, "round": 0, "due_s": None, "traffic": "t", "seed": 1000 + ordinal,
            "payload": payload, "behaviour": "plain", "behaviour_options": None, "output": Output(max=8),
            "ordinal": ordinal, "run_seed": 3,
        }  # fmt: skip
        return Step(**{**values, **more})

    return make
