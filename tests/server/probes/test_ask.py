"""Questions to a real socket: what a server may answer in place of a chat completion."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loadchaos.core import http_client
from loadchaos.core.ledger.row_check import fits_completely
from loadchaos.core.redact import Redactor
from loadchaos.run.asker import HttpAsker
from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.question import Question
from tests.http_server import Asked, answering


@contextmanager
def server(body: Any, *, streams: bool = True) -> Iterator[str]:
    """Answers every request with this JSON value, streamed where that was asked and `streams` is set."""

    text = json.dumps(body)

    def reply(asked: Asked) -> tuple[int, object]:
        return 200, f"data: {text}\n\ndata: [DONE]\n\n" if asked.json()["stream"] and streams else text

    with answering(reply) as url:
        yield url


def asked(body: Any, *, stream: bool, streams: bool = True) -> Any:
    async def ask(url: str) -> Any:
        async with http_client.client() as http:
            asker = RecordedAsker(HttpAsker(http), url, "m", lambda row: None, Redactor())
            return await asker.ask(Question("Hello", "Hello", 8), Purpose("reference", "copy", "idle"), stream=stream)

    with server(body, streams=streams) as url:
        return asyncio.run(ask(url))


def completion(usage: Any, finish: Any = "stop") -> dict[str, Any]:
    part = {"content": "Hello"}
    return {"choices": [{"index": 0, "message": part, "delta": part, "finish_reason": finish}], "usage": usage}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 20, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 16}}, (20, 8, 16)),
        ({"prompt_tokens": "20", "completion_tokens": "9", "prompt_tokens_details": {"cached_tokens": "x"}}, ()),
        ({"prompt_tokens": 20, "completion_tokens": None, "prompt_tokens_details": 3}, (20,)),
        (None, ()),
    ],
)  # fmt: skip
def test_asker_writes_a_row_that_can_be_read_whatever_the_usage_is(usage: Any, tokens: Any, stream: bool) -> None:
    row = asked(completion(usage), stream=stream)
    assert fits_completely(row), row
    assert (row["text"], row["error"]) == ("Hello", "")
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    assert tuple(row[name] for name in names if row.get(name) is not None) == tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (completion([20, 9]), "usage is not an object"),
        (completion("20"), "usage is not an object"),
        (completion(None, finish={"type": "stop"}), "finish_reason is not a string"),
        ({}, "choices is not a list of objects"),
        ([], "the value is not an object"),
        ({"choices": [1]}, "choices is not a list of objects"),
        ({"choices": []}, "the answer ended without a finish_reason"),
    ],
)
def test_asker_says_what_is_wrong_with_a_body_as_the_load_does(body: Any, error: str, stream: bool) -> None:
    row = asked(body, stream=stream)
    assert fits_completely(row), row
    assert row["error"].startswith(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [{"message": "backend exploded", "code": 500}, "backend exploded"])
def test_asker_tells_the_error_that_stands_in_place_of_an_answer(error: Any, stream: bool) -> None:
    assert asked({"error": error}, stream=stream)["error"] == "backend exploded"


def test_asker_says_that_a_body_stands_in_place_of_a_stream() -> None:
    assert asked({"error": {"message": "backend exploded"}}, stream=True, streams=False)["error"] == "backend exploded"
    row = asked(completion({"completion_tokens": 1}), stream=True, streams=False)
    assert (row["text"], row["completion_tokens"]) == ("Hello", 1)
    assert row["error"] == "a stream was requested, but one JSON value arrived"
