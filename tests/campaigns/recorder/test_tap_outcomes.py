import gzip
import itertools
import json
import time
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadchaos.campaigns.recorder.answer_outcome import STREAM_BYTES
from loadchaos.campaigns.recorder.freeze import FEWEST, FreezeWatch
from loadchaos.campaigns.recorder.tap import ConnectionTap
from loadchaos.core.model import Outcome
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.wire.answer_reader import AnswerRules
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.sockets import Origin, Slot
from loadchaos.server.dialects import outcome_rules_of_any_server
from tests.campaigns.recorder.conftest import SeenExchanges, whole
from tests.load.wire.native_reading import Reading
from tests.load.wire.requests import wire_request
from tests.raw_sockets import chunk

RULES = AnswerRules(outcome_rules_of_any_server())
CHAT = "/v1/chat/completions"


class FedConnection:
    """Connection whose server sends these pieces and closes, or resets."""

    def __init__(self, pieces: list[bytes], *, resets: bool) -> None:
        self._pieces, self._resets = list(pieces), resets
        self.number, self.idle_since_ns = 1, time.monotonic_ns()

    def send(self, piece: bytes) -> None:
        pass

    def receive(self, _most: int) -> tuple[int, bytes]:
        if not self._pieces and self._resets:
            raise ConnectionResetError
        return time.monotonic_ns(), self._pieces.pop(0) if self._pieces else b""

    def close(self) -> None:
        pass


def outcome_in_a_run(
    path: str, pieces: list[bytes], *, stream: bool, resets: bool, reading: Reading | None = None
) -> Outcome:
    endpoint = next(e for e in ENDPOINTS.values() if e.path == path)
    slot = Slot(Origin("http://127.0.0.1:9"))
    wire = wire_request(slot.target, path=path, stream=stream, rules=RULES, fresh=True, reader=endpoint.answer)
    call = Exchange(wire, slot, Progress())
    if reading is not None:
        reading.read(call, ((time.monotonic_ns(), piece) for piece in pieces if piece))
        return call.end_row()["outcome"]
    call._connection = FedConnection(pieces, resets=resets)  # type: ignore[assignment]
    call.send()
    while call.receive():
        pass
    return call.end_row()["outcome"]


def outcome_in_a_recording(path: str, pieces: list[bytes], *, resets: bool) -> Outcome | None:
    seen = SeenExchanges()
    tap = ConnectionTap(seen)
    tap.feed_request(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % path.encode())
    try:
        for piece in pieces:
            if tap.answering:
                tap.feed_answer(piece)
    except httptools.HttpParserError:
        pass  # the proxy observes this connection no longer
    else:
        tap.end("upstream_reset" if resets else "upstream_closed")
    (exchange,) = seen.ended
    return exchange.outcome


def delta(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}
    return sse({"id": "chatcmpl-1", "choices": [choice], **more})


def sse(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: %s\n\n" % json.dumps(data).encode()


DONE = b"data: [DONE]\n\n"
USAGE = sse({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
ERROR = {"error": {"message": "the engine is sorry", "code": 500}}
CONTRADICTION = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 9}
STREAMS: dict[str, list[bytes]] = {
    "good": [delta("a"), delta("b"), delta(None, "stop"), USAGE, DONE],
    "good, in one event": [delta("a", "stop"), DONE],
    "no [DONE]": [delta("a"), delta(None, "stop")],
    "[DONE] without finish": [delta("a"), DONE],
    "no finish, no [DONE]": [delta("a"), delta("b")],
    "no token": [delta(None, "stop"), DONE],
    "nothing": [],
    "comments": [b": ping\n\n", delta("a"), b": ping\n\n", delta(None, "length"), DONE],
    "error first": [sse(ERROR), DONE],
    "error after a token": [delta("a"), sse(ERROR), DONE],
    "error by its name": [delta("a"), sse({"message": "sorry"}, "error")],
    "refused in the stream": [sse({"error": {"message": "maximum context length is 5", "code": 400}}), DONE],
    "overload in the stream": [sse({"error": {"message": "busy", "code": 429}}), DONE],
    "error finish": [delta("a"), delta(None, "error"), DONE],
    "abort finish": [delta("a"), delta(None, "abort"), DONE],
    "own finish": [delta("a"), delta(None, "repetition"), DONE],
    "text after finish": [delta("a", "stop"), delta("b"), DONE],
    "text after [DONE]": [delta("a", "stop"), DONE, delta("b")],
    "error after [DONE]": [delta("a", "stop"), DONE, sse(ERROR)],
    "usage after [DONE]": [delta("a", "stop"), DONE, USAGE],
    "two [DONE]": [delta("a", "stop"), DONE, DONE],
    "usage contradicts": [delta("a", "stop"), sse({"choices": [], "usage": CONTRADICTION}), DONE],
    "no JSON": [delta("a"), b"data: {broken\n\n", DONE],
    "wrong shape": [delta("a"), sse({"choices": 7}), DONE],
    "no blank line at the end": [delta("a", "stop"), b"data: [DONE]"],
    "no SSE": [b"this is no stream"],
    "page": [b"<html>bad gateway</html>"],
}
BODIES: dict[str, bytes] = {
    "good": whole("yes"),
    "empty body": b"",
    "no JSON": b"<html>",
    "error under 200": json.dumps(ERROR).encode(),
    "detail under 200": b'{"detail":"Not Found"}',
    "error finish": whole("yes").replace(b'"stop"', b'"error"'),
    "abort finish": whole("yes").replace(b'"stop"', b'"abort"'),
    "no finish": whole("yes").replace(b'"stop"', b"null"),
    "no text": b'{"choices":[{"index":0,"message":{"content":""},"finish_reason":"stop"}]}',
    "wrong shape": b'{"choices":[{}]}',
    "usage contradicts": json.dumps({**json.loads(whole("yes")), "usage": CONTRADICTION}).encode(),
    "unavailable": b'{"error":{"message":"no"}}',
    "context": b'{"error":{"message":"This model\'s maximum context length is 5 tokens"}}',
    "dead": b'{"error":{"message":"EngineCore encountered an issue. See stack trace"}}',
    "plain text": b"Service Unavailable",
}
STATUSES = ["200 OK", "400 Bad Request", "404 Not Found", "413 Too Large", "422 Unprocessable", "429 Too Many Requests",
            "500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable", "307 Temporary Redirect",
            "204 No Content"]  # fmt: skip
RESPONSES = [
    sse({"type": "response.created", "response": {"id": "r", "status": "in_progress"}}),
    sse({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "a"}),
    sse({"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "a"}),
]
TYPED: dict[str, tuple[str, list[bytes]]] = {
    "responses": ("/v1/responses", [*RESPONSES, sse({"type": "response.completed", "response": {"id": "r"}})]),
    "responses failed": ("/v1/responses", [*RESPONSES, sse({"type": "response.failed", "response": {"id": "r"}})]),
    "responses cut": ("/v1/responses", RESPONSES),
    "messages": (
        "/v1/messages",
        [
            sse({"type": "message_start", "message": {"id": "m"}}, "message_start"),
            sse({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, "content_block_delta"),
            sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, "message_delta"),
            sse({"type": "message_stop"}, "message_stop"),
        ],
    ),
    "messages with an error": ("/v1/messages", [sse({"type": "error", "error": {"message": "no"}}, "error")]),
}


def response(status: str, body: bytes, framing: str, *headers: str) -> bytes:
    """An answer as bytes; `framing` is length, chunked or close."""
    lines = [f"HTTP/1.1 {status}", *headers]
    if framing == "length":
        lines.append(f"Content-Length: {len(body)}")
    elif framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(chunk(body[i : i + 97]) for i in range(0, len(body), 97)) + b"0\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode() + body


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)
END = st.one_of(st.none(), st.integers(0, 1 << 20))
FRAMINGS = st.sampled_from(["length", "chunked", "close"])


def same(path: str, data: bytes, cuts: list[int], *, stream: bool, resets: bool) -> Outcome:
    pieces = pieces_of(data, cuts)
    run = outcome_in_a_run(path, pieces, stream=stream, resets=resets)
    assert outcome_in_a_recording(path, pieces, resets=resets) == run
    return run


@settings(max_examples=500)
@given(st.sampled_from(sorted(STREAMS)), FRAMINGS, CUTS, END, st.booleans())
def test_outcome_of_a_stream_is_that_of_a_run(
    name: str, framing: str, cuts: list[int], end: int | None, resets: bool
) -> None:
    data = response("200 OK", b"".join(STREAMS[name]), framing, "Content-Type: text/event-stream; charset=utf-8")
    same(CHAT, data[:end], cuts, stream=True, resets=resets)


@settings(max_examples=500)
@given(
    st.sampled_from(sorted(BODIES)), st.sampled_from(STATUSES), FRAMINGS, CUTS, END, st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_outcome_of_a_body_is_that_of_a_run(
    name: str, status: str, framing: str, cuts: list[int], end: int | None, resets: bool, later: bool, gzipped: bool
) -> None:
    headers = ["Content-Type: application/json", *(["Retry-After: 3"] if later else [])]
    body = BODIES[name]
    if gzipped:
        headers, body, end = [*headers, "Content-Encoding: gzip"], gzip.compress(body), None
    if status.startswith("204"):
        framing, body, headers = "length", b"", []
    data = response(status, body, framing, *headers)
    same(CHAT, data[:end], cuts, stream=False, resets=resets and not gzipped)


@settings(max_examples=200)
@given(st.sampled_from(sorted(TYPED)), FRAMINGS, CUTS, END)
def test_outcome_of_another_endpoint_is_that_of_a_run(
    name: str, framing: str, cuts: list[int], end: int | None
) -> None:
    path, events = TYPED[name]
    data = response("200 OK", b"".join(events), framing, "Content-Type: text/event-stream")
    same(path, data[:end], cuts, stream=True, resets=False)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("tokens", [60, 400])
def test_outcome_of_a_long_stream_is_that_of_a_run(name: str, tokens: int) -> None:
    """A long stream is judged by its end: what ended before it was right."""
    many = [delta(f" w{n}", created=1_766_666_666, model="a/model-with-a-name") for n in range(tokens)]
    stream = [*many, *STREAMS[name]]
    assert sum(map(len, many)) > STREAM_BYTES // 2
    data = response("200 OK", b"".join(stream), "chunked", "Content-Type: text/event-stream")
    if name in ("no SSE", "page"):
        return  # after events, neither is seen by a run
    same(CHAT, data, list(range(0, len(data), 331)), stream=True, resets=False)


BROKEN_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"


@pytest.mark.parametrize("data", [b"no HTTP at all\r\n\r\n", BROKEN_CHUNK])
def test_outcome_of_what_is_no_http_is_that_of_a_run(data: bytes) -> None:
    assert same(CHAT, data, [], stream=False, resets=False) == "protocol_error"


@pytest.mark.parametrize(("body", "outcome"), [(b"{}", "ok"), (b'{"error":{"message":"no"}}', "http_error")])
def test_answer_of_an_unknown_path_counts_by_its_error_objects(body: bytes, outcome: str) -> None:
    data = response("200 OK", body, "length", "Content-Type: application/json")
    assert outcome_in_a_recording("/tokenize", [data], resets=False) == outcome


def outage(status: str, *headers: str) -> str | None:
    watch, reason = FreezeWatch(0.5), None
    data = response(status, b"upstream is not available", "length", *headers)
    for _ in range(FEWEST):
        seen = SeenExchanges()
        tap = ConnectionTap(seen)
        tap.feed_request(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % CHAT.encode())
        tap.feed_answer(data)
        reason = watch.feed(seen.ended[0])
    return reason


def test_outage_of_plain_503s_keeps_the_recording() -> None:
    assert outage("503 Service Unavailable") == f"error rate: {FEWEST} of {FEWEST} requests failed in 30 s"


def test_overload_that_says_when_to_come_again_does_not_keep_the_recording() -> None:
    assert outage("503 Service Unavailable", "Retry-After: 1") is None
    assert outage("429 Too Many Requests") is None
