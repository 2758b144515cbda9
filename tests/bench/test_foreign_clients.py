import http.client
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from bench.foreign_clients import DEATH, Said, table
from bench.foreign_server import EVERY, FAULTS, Gateway, events_of, served
from loadchaos.campaigns.recorder.answer_outcome import SeenAnswer, outcome_of

_TOKENS = 8


def _chunk(**choice: object) -> dict[str, object]:
    return {"id": "a", "object": "chat.completion.chunk", "model": "sim", "choices": [{"index": 0, **choice}]}


def _stream() -> bytes:
    chunks = [_chunk(delta={"role": "assistant", "content": ""}, finish_reason=None)]
    for number in range(_TOKENS):
        last = number == _TOKENS - 1
        chunks.append(_chunk(delta={"content": f" word{number}"}, finish_reason="length" if last else None))
    usage = {"prompt_tokens": 5, "completion_tokens": _TOKENS, "total_tokens": 5 + _TOKENS}
    chunks.append({**_chunk(), "choices": [], "usage": usage})
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n"


STREAM = _stream()


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("stream_error", "stream_error"),
        ("finish_error", "finish_error"),
        ("finish_abort", "finish_abort"),
        ("cut", "truncated"),
        ("cut_with_done", "truncated"),
        ("json_error", "http_error"),
        ("after_done", "wrong_output"),
        ("twice", "wrong_output"),
        *((name, "ok") for name in ("empty", "lost", "other_text", "degenerate", "other_model")),
    ],
)
def test_spoiled_answer_has_the_outcome_of_its_fault(name: str, outcome: str) -> None:
    fault = FAULTS[name]
    body = b"".join(fault.spoil(events_of(STREAM.splitlines(keepends=True))))
    assert body != STREAM
    answer = SeenAnswer(True, "/v1/chat/completions", 200, {}, fault.streams, body, True, 1)
    assert outcome_of(answer, "complete") == outcome


@pytest.fixture
def upstream() -> Iterator[tuple[str, int]]:
    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(STREAM)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield "127.0.0.1", server.server_address[1]
    server.shutdown()
    server.server_close()


def _ask(port: int, path: str = "/v1/chat/completions") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", path, b"{}")
    answer = connection.getresponse().read()
    connection.close()
    return answer


def test_gateway_spoils_every_third_answer_and_no_other_request(upstream: tuple[str, int]) -> None:
    gateway = Gateway(upstream, FAULTS["cut"])
    with served(gateway) as port:
        assert _ask(port, "/tokenize") == STREAM
        answers = [_ask(port) for _ in range(2 * EVERY)]
    assert [answer == STREAM for answer in answers] == [True, True, False] * 2
    assert (gateway.posts, gateway.spoiled) == (6, 2)


def test_gateway_hides_the_death_of_an_engine(upstream: tuple[str, int]) -> None:
    dead = ("127.0.0.1", 1)
    with served(Gateway(dead, second=upstream)) as port:
        assert _ask(port) == STREAM


def test_table_has_what_each_tool_said_and_what_watch_said() -> None:
    results = [
        Said("k6 1.1.0", "cut", 24, 8, 1, 24, 24, 0, "fail", "unexplained_truncated (8)"),
        Said("Locust 2.47.0", "cut", 24, 8, 1, None, None, None, "fail", "unexplained_truncated (8)"),
        Said("k6 1.1.0", DEATH, 24, 0, 0, 24, 16, 8, "unknown"),
    ]
    cut, death = table(results).splitlines()[2:]
    assert cut.endswith(
        "three tokens | no result, exit code 1 | 24 of 24 ok | fail: `unexplained_truncated` (2 of 2) |"
    )
    assert death.endswith("another one |  | 16 of 24 ok | unknown (1 of 1) |")
