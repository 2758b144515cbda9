"""Any bytes of a server give one outcome: no exception, and `ok` only where other readers find a whole answer, too."""

import http.client
import io
import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from loadchaos.core.model import OUTCOMES
from tests.campaigns.recorder.test_tap_outcomes import (
    BODIES,
    CHAT,
    STATUSES,
    STREAMS,
    TYPED,
    outcome_in_a_run,
    pieces_of,
    response,
)
from tests.fuzz import EACH, SEEDS, spoiled
from tests.load.wire.native_reading import READINGS, Reading

HTTP_WORDS = [
    b"\r\n", b"\n", b"\r\n\r\n", b"0\r\n\r\n", b"Content-Length: 3\r\n", b"Content-Length: 99999999999999999999\r\n", b"-1",
    b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 ", b"\0",
    b"HTTP/1.1 200 OK\r\n\r\n", b"Connection: close\r\n", b"ffffffffffffffff\r\n", b" ", b"\xff", b"7;x=\"\r\n",
]  # fmt: skip
SSE_WORDS = [
    b"\n", b"\r", b"\n\n", b"data: ", b"data: [DONE]\n\n", b"event: error\n", b": x\n", b"\xef\xbb\xbf", b"\xff", b"\0",
    b"{", b"}", b"null", b'"', b"[]", b"1e999", b"-1", b'"error":', b'"choices":', b'"delta":', b'"finish_reason":"stop",',
    b"\\", b'"usage":{"completion_tokens":1e40}', b"data: " + b"[" * 2000 + b"\n\n",
]  # fmt: skip
LAST_EVENTS = {"/v1/responses": "response.completed", "/v1/messages": "message_stop"}
FINISHED = {"stop", "length", "tool_calls", "eos_token", "end_turn", "max_tokens", "repetition"}


class Bytes:
    """A socket for http.client that has these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def body_of(data: bytes) -> tuple[bytes, bool]:
    """Body of an answer of status 2xx, as http.client reads it, and whether it is whole."""
    answer = http.client.HTTPResponse(Bytes(data), method="POST")  # type: ignore[arg-type]
    try:
        answer.begin()
        return (answer.read() if answer.status // 100 == 2 else b""), answer.status // 100 == 2
    except http.client.IncompleteRead as e:
        return e.partial, False
    except (http.client.HTTPException, ValueError):
        return b"", False


def events_of(body: bytes) -> Iterator[Any]:
    """Events of a stream until [DONE], which counts as None."""
    lines: list[str] = []
    for line in [*re.split(r"\r\n|\r|\n", body.decode("utf-8-sig", "replace")), ""]:
        if line.startswith("data") and line[4:5] in ("", ":"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            text, lines = "\n".join(lines), []
            yield None if text.strip() == "[DONE]" else json.loads(text)


def reasons_in(node: Any) -> Iterator[str]:
    for key, value in node.items() if isinstance(node, dict) else ():
        yield from [value] if key in ("finish_reason", "stop_reason") and isinstance(value, str) else ()
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from reasons_in(inner)


def is_whole(path: str, data: bytes, *, stream: bool) -> bool:
    """True for an answer of 200 whose JSON has no error and a reason of its end, and which ends as it should: with its
    last event, or where http.client finds the end of the body.
    """
    body, whole = body_of(data)
    try:
        events = list(events_of(body)) if stream else [json.loads(body)]
    except ValueError:
        return False
    if path in LAST_EVENTS:
        kinds = {str(event.get("type")) for event in events if isinstance(event, dict)}
        return LAST_EVENTS[path] in kinds and not kinds & {"error", "response.failed"}
    if not whole and None not in events:
        return False
    events = list(itertools.takewhile(lambda event: event is not None, events))
    errors = [event for event in events if not isinstance(event, dict) or event.get("error")]
    return not errors and bool(FINISHED.intersection(reasons_in(events)))


@pytest.mark.parametrize("native", READINGS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["HTTP", "SSE"])
def test_any_bytes_are_ok_only_where_they_are_a_whole_answer(kind: str, seed: int, native: bool) -> None:
    reading = Reading(native=native)
    rng = random.Random(f"{kind} {seed}")
    for _ in range(EACH):
        stream = kind == "SSE" or rng.random() < 0.3
        path, parts = CHAT, STREAMS[rng.choice(sorted(STREAMS))] if stream else [BODIES[rng.choice(sorted(BODIES))]]
        if kind == "SSE" and rng.random() < 0.3:
            path, parts = TYPED[rng.choice(sorted(TYPED))]
        body, status = b"".join(parts), rng.choice(STATUSES) if kind == "HTTP" else "200 OK"
        if kind == "SSE":
            body = spoiled(body, SSE_WORDS, rng)
        content = f"Content-Type: {'text/event-stream' if stream else 'application/json'}"
        data = response(status, body, rng.choice(["length", "chunked", "close"]), content)
        if kind == "HTTP":
            data = spoiled(data, HTTP_WORDS, rng)
        pieces = pieces_of(data, [rng.randrange(1 << 20) for _ in range(rng.randint(0, 12))])
        outcome = outcome_in_a_run(path, pieces, stream=stream, resets=False, reading=reading)
        assert outcome in OUTCOMES
        assert outcome != "ok" or is_whole(path, data, stream=stream), data
