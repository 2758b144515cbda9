import asyncio
import json
from typing import Any

import httpx
import pytest

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts, TextFacts
from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import from_mapping
from loadchaos.run import endpoint_check
from loadchaos.simulator.engine import tokenizer
from tests.discovering import discovering
from tests.load.endpoints.test_endpoint_bodies import WORDS


def checked(answer: Any, endpoint: str = "completions") -> Facts:
    facts = Facts("http://s", "http://s", "vllm", model="m", text=TextFacts(0, WORDS, " the", "tokenize"))
    traffic = [{"name": "t", "endpoint": endpoint, "payload": {"text": {"tokens": 20}}}]
    wanted = from_mapping({"name": "p", "traffic": traffic, "load": [{"users": 1, "requests": 1}]}, full_registry())

    async def ask() -> Facts:
        async with discovering(serve=answer) as asker:
            return await endpoint_check.require_endpoints(asker, wanted, facts)

    return asyncio.run(ask())


def counting(add: int, factor: int = 1) -> Any:
    def serve(request: httpx.Request) -> httpx.Response:
        tokens = factor * len(tokenizer.encode(json.loads(request.content)["prompt"])) + add
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        return httpx.Response(
            200, json={"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}], "usage": usage}
        )

    return serve


def test_endpoint_check_counts_what_the_endpoint_adds() -> None:
    assert checked(counting(3)).endpoints == {"completions": (0, 3)}


@pytest.mark.parametrize(("once", "each"), [(0, 3), (9, 2)])
def test_endpoint_check_tells_what_is_added_once_and_to_each_text(once: int, each: int) -> None:
    def serve(request: httpx.Request) -> httpx.Response:
        texts = json.loads(request.content)["text_2"]
        tokens = once + sum(len(tokenizer.encode(text)) + each for text in texts)
        data = [{"index": n, "score": 0.5} for n in range(len(texts))]
        return httpx.Response(200, json={"data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})

    assert checked(serve, "score").endpoints == {"score": (once, each)}


def test_endpoint_check_leaves_lengths_unknown_that_do_not_add_up() -> None:
    assert checked(counting(0, factor=2)).endpoints == {"completions": None}
    assert checked(lambda _: httpx.Response(200, json={"choices": []})).endpoints == {"completions": None}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"detail": "Not Found"}),
        (405, {"detail": "Method Not Allowed"}),
        (400, {"error": {"message": "The model does not support Messages API", "code": 400}}),
        (400, {"object": "error", "message": "Unsupported by turbomind.", "code": 400}),
    ],
)
def test_endpoint_check_refuses_a_server_without_the_endpoint(status: int, body: Any) -> None:
    with pytest.raises(TargetError) as error:
        checked(lambda _: httpx.Response(status, json=body), "messages")
    text = str(error.value)
    assert "traffic.0.endpoint messages (traffic t): the server http://s has no such endpoint" in text
    assert f"POST /v1/messages answered {status} " in text
    assert "--set traffic.0.endpoint=NAME (chat, completions, " in text


def test_endpoint_check_does_not_take_another_error_for_a_missing_endpoint() -> None:
    unknown = {"error": {"message": "The model `m` does not exist.", "code": 404}}
    for answer in (httpx.Response(404, json=unknown), httpx.Response(500, text="boom")):
        assert checked(lambda _, answer=answer: answer).endpoints == {"completions": None}


def test_endpoint_check_sends_the_headers_of_the_endpoint() -> None:
    seen: list[str] = []

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["anthropic-version"])
        return httpx.Response(500)

    checked(serve, "messages")
    assert seen == ["2023-06-01"]
