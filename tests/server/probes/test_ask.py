"""Questions to a real socket: what a server may answer in place of a chat completion."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from loadchaos.core.ledger.row_check import fits_completely
from loadchaos.core.redact import Redactor
from loadchaos.server.monitor.base import ServerAccess
from loadchaos.server.probes.ask import Asker, Purpose
from loadchaos.server.probes.question import Question


@contextmanager
def server(body: Any, *, streams: bool = True) -> Iterator[str]:
    """Answers every request with this JSON value, streamed where that was asked and `streams` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = json.dumps(body)
            page = f"data: {text}\n\ndata: [DONE]\n\n".encode() if asked["stream"] and streams else text.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


def asked(body: Any, *, stream: bool, streams: bool = True) -> Any:
    async def ask(url: str) -> Any:
        asker = Asker(url, "m", lambda row: None, Redactor(), ServerAccess())
        try:
            return await asker.ask(Question("Hello", "Hello", 8), Purpose("reference", "copy", "idle"), stream=stream)
        finally:
            await asker.close()

    with server(body, streams=streams) as url:
        return asyncio.run(ask(url))


def completion(usage: Any, finish: Any = "stop") -> dict[str, Any]:
    part = {"content": "Hello"}
    return {"choices": [{"index": 0, "message": part, "delta": part, "finish_reason": finish}], "usage": usage}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 20, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 16}}, (20, 9, 16)),
        ({"prompt_tokens": "20", "completion_tokens": "9", "prompt_tokens_details": {"cached_tokens": "x"}}, ()),
        ({"prompt_tokens": 20, "completion_tokens": None, "prompt_tokens_details": 3}, (20,)),
        ([20, 9], ()), ("20", ()), (None, ()),
    ],
)  # fmt: skip
def test_asker_writes_a_row_that_can_be_read_whatever_the_usage_is(usage: Any, tokens: Any, stream: bool) -> None:
    row = asked(completion(usage), stream=stream)
    assert fits_completely(row), row
    assert (row["text"], row["error"]) == ("Hello", "")
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    assert tuple(row[name] for name in names if row.get(name) is not None) == tokens


@pytest.mark.parametrize("stream", [False, True])
def test_asker_writes_a_row_that_can_be_read_whatever_the_finish_reason_is(stream: bool) -> None:
    assert fits_completely(asked(completion(None, finish={"type": "stop"}), stream=stream))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [{"message": "backend exploded", "code": 500}, "backend exploded"])
def test_asker_tells_the_error_that_stands_in_place_of_an_answer(error: Any, stream: bool) -> None:
    assert asked({"error": error}, stream=stream)["error"] == "backend exploded"


@pytest.mark.parametrize("body", [{}, [], {"choices": []}, {"choices": [1]}])
def test_asker_says_that_a_body_is_no_chat_completion(body: Any) -> None:
    assert asked(body, stream=False)["error"] == "the answer has status 200 and is no chat completion"


def test_asker_reads_a_body_in_place_of_a_stream() -> None:
    """An error in it was an empty answer, which differs from the whole one."""
    assert asked({"error": {"message": "backend exploded"}}, stream=True, streams=False)["error"] == "backend exploded"
    row = asked(completion({"completion_tokens": 1}), stream=True, streams=False)
    assert (row["text"], row["completion_tokens"], row["error"]) == ("Hello", 1, "")
