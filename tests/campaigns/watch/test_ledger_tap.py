"""Rows of requests that somebody else sent through the recording proxy."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.recorder.channel import RecordingChannel
from loadchaos.campaigns.recorder.frames import RecordingSetup
from loadchaos.campaigns.watch.ledger_tap import RequestLog
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.model import Facts
from loadchaos.core.redact import Redactor
from loadchaos.load.wire.request import WireTimeouts
from loadchaos.load.worker.recorder import RequestRecorder
from tests.campaigns.recorder.conftest import Between, plain, post, whole
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, Handler, chunk, read_request, reset
from tests.waiting import until

DONE = chunk(b"data: [DONE]\n\n") + LAST_CHUNK
BUSY = b'{"error":{"message":"too many requests in the queue","type":"overloaded_error","code":429}}'
FACTS = Facts(base_url="http://x", admin_url="http://x", dialect="vllm", model="m", version="0.32.0")


def delta(content: str, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content} if content else {}, "finish_reason": finish}
    return chunk(b"data: %s\n\n" % json.dumps({"id": "c1", "choices": [choice], **more}).encode())


def answer(*pieces: bytes) -> Handler:
    def serve(c: socket.socket) -> None:
        while read_request(c):
            for piece in pieces:
                c.sendall(piece)
            if not pieces or not pieces[-1].endswith((LAST_CHUNK, b"}")):
                return

    return serve


class Log:
    """The rows of one proxy, and how to send requests through it."""

    def __init__(self, between: Between, folder: Path) -> None:
        self._between, self._path = between, folder / "requests-0.jsonl"
        channel = RecordingChannel(
            RecordingSetup(
                folder=str(folder), keep_s=60, max_bytes=1 << 20, bodies=True, upstream="x", recording="r", key="00"
            ),
            print,
        )
        self._recorder = RequestRecorder(self._path, 0)
        self.log = RequestLog(self._recorder, channel, FACTS, Redactor(["sk-secret"]))
        self._tail = Tail(self._path)
        self._rows: list[Any] = []

    def serve(self, handler: Handler | None) -> socket.socket:
        self.proxy, _ = self._between(handler, self.log.connection)
        return self.proxy.connect()

    def ends(self, count: int = 1) -> list[Any]:
        def read() -> list[Any]:
            self._rows += [dict(row) for row in self._tail.rows()]
            return [row for row in self._rows if row["row"] == "end"]

        until(lambda: len(read()) >= count, f"{count} end rows")
        return read()

    def begins(self) -> list[Any]:
        return [row for row in self._rows if row["row"] == "begin"]


@pytest.fixture
def log(between: Between, tmp_path: Path) -> Log:
    return Log(between, tmp_path)


def asked(**more: object) -> bytes:
    messages = [{"role": "user", "content": "Tell me"}]
    return post(json.dumps({"model": "m", "messages": messages, "stream": True, **more}).encode())


SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": {"type": "object"}}}
USAGE = {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 9}}
SHORT = {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
TWICE = [delta(f" word{n // 2}") for n in range(14)]
ERROR = chunk(b'data: {"error":{"message":"EngineDeadError","type":"InternalServerError","code":500}}\n\n')


@pytest.mark.parametrize(
    ("request_bytes", "pieces", "outcome"),
    [
        (asked(), (SSE_HEAD, delta("a"), delta("b", "stop"), DONE), "ok"),
        (asked(), (SSE_HEAD, delta("a"), ERROR, DONE), "stream_error"),
        (asked(), (SSE_HEAD, delta("a"), delta("b", "error"), DONE), "finish_error"),
        (asked(), (SSE_HEAD, delta("a"), DONE), "truncated"),
        (asked(), (SSE_HEAD, delta("a")), "reset"),
        (asked(), (SSE_HEAD, delta("a"), delta("", "stop", **USAGE), DONE), "wrong_output"),
        (asked(max_tokens=32), (SSE_HEAD, delta("a"), delta("b", "length", **SHORT), DONE), "wrong_output"),
        (asked(max_tokens=12), (SSE_HEAD, *TWICE, delta("", "stop"), DONE), "wrong_output"),
        (asked(max_tokens=64), (SSE_HEAD, *TWICE, delta("", "stop"), DONE), "ok"),
        (asked(n=2), (SSE_HEAD, delta("a"), delta("b", "stop"), DONE), "wrong_output"),
        (asked(response_format=SCHEMA), (SSE_HEAD, delta("no"), delta(" json", "stop"), DONE), "wrong_output"),
        (asked(stream=False), (plain(whole("one two three")),), "ok"),
        (asked(stream=False), (plain(BUSY, b"429 Too Many Requests"),), "shed"),
        (asked(), (), "reset"),
    ],
)  # fmt: skip
def test_ledger_tap_gives_each_answer_the_outcome_of_a_run(
    log: Log, request_bytes: bytes, pieces: tuple[bytes, ...], outcome: str
) -> None:
    with log.serve(answer(*pieces)) as client:
        client.sendall(request_bytes)
        (row,) = log.ends()
    assert (row["outcome"], row["traffic"], row["id"]) == (outcome, "chat", "w-0"), row
    (begin,) = log.begins()
    assert begin["len"] == len(request_bytes.partition(b"\r\n\r\n")[2])


def test_ledger_tap_measures_from_the_request_to_its_tokens(log: Log) -> None:
    with log.serve(answer(SSE_HEAD, delta("a"), delta("b"), delta("c", "stop"), DONE)) as client:
        client.sendall(asked())
        (row,) = log.ends()
    assert row["chunks"] == 3
    assert row["due_ns"] == row["sent_ns"] <= row["first_byte_ns"] <= row["first_token_ns"] <= row["last_byte_ns"]
    assert row["first_token_ns"] - row["due_ns"] < 5e9


def test_ledger_tap_follows_a_connection_of_many_requests(log: Log) -> None:
    """A GET and an unknown path between them have no rows, and their answers are skipped exactly."""
    with log.serve(answer(plain(whole("one")))) as client:
        for n, request in enumerate(
            (asked(stream=False), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", asked(stream=False))
        ):
            client.sendall(request)
            until(lambda: client.recv(1 << 16), f"answer {n}")
        ends = log.ends(2)
    assert [row["outcome"] for row in ends] == ["ok", "ok"]
    assert [begin["reused"] for begin in log.begins()] == [False, True]
    assert len({begin["conn"] for begin in log.begins()}) == 1


def test_ledger_tap_reads_pipelined_answers_of_one_packet(log: Log) -> None:
    two = plain(whole("one")) + plain(b'{"error":{"message":"boom"}}', b"500 Internal Server Error")

    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(two)
        c.recv(1)

    with log.serve(serve) as client:
        client.sendall(asked(stream=False) + asked(stream=False))
        ends = log.ends(2)
    assert [row["outcome"] for row in ends] == ["ok", "http_error"]


@pytest.mark.parametrize(("finish", "tokens"), [("length", 12), ("stop", None)])
def test_ledger_tap_takes_the_tokens_of_an_answer_without_usage_from_its_limit(
    log: Log, finish: str, tokens: int | None
) -> None:
    with log.serve(answer(SSE_HEAD, delta("some w\u00f6rds"), delta("", finish), DONE)) as client:
        client.sendall(asked(max_tokens=12))
        (row,) = log.ends()
    assert row["detail"].get("text_tokens") == tokens
    assert row["detail"].get("text_bytes") == (11 if tokens else None)


ORDER, OTHER = "order 7f3k9q2m5x", "order 4b8d1z6w3c"


@pytest.mark.parametrize(
    ("before", "own", "said", "outcome"),
    [
        ([ORDER], OTHER, ORDER, "wrong_output"),
        ([ORDER], OTHER, OTHER, "ok"),
        ([ORDER], f"{OTHER} not {ORDER}", ORDER, "ok"),
        ([ORDER, f"{ORDER} again"], OTHER, ORDER, "ok"),
        (["gpt-4o-2024-08-06 of 2026"], OTHER, "gpt-4o-2024-08-06 of 2026", "ok"),
        (["orders:\n7f3k9q2m5x"], OTHER, ORDER, "wrong_output"),
        (["eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"], OTHER, "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", "ok"),
        (["user abc123def456"], OTHER, "user abc123def456", "ok"),
        (["a1b2c3d4e5f6"], OTHER, "a1b2c3d4e5f6", "ok"),
    ],
)
def test_ledger_tap_finds_the_id_of_another_request_in_an_answer(
    log: Log, before: list[str], own: str, said: str, outcome: str
) -> None:
    """An id that the request has itself, or that several others have, proves nothing, nor does the name of a model."""
    texts = iter([*before, said])

    def serve(c: socket.socket) -> None:
        while read_request(c):
            c.sendall(plain(whole(next(texts))))

    with log.serve(serve) as client:
        for n, prompt in enumerate([*before, own], 1):
            client.sendall(asked(stream=False, messages=[{"role": "user", "content": prompt}]))
            row = log.ends(n)[-1]
    assert row["outcome"] == outcome
    if outcome != "ok":
        (part,) = row["wrong"]
        assert (part["id"], part["other"]) == ("answer_of_another_request", "w-0")


def test_ledger_tap_knows_an_id_that_the_model_made(log: Log) -> None:
    """It stands in the next turn, and in the answer to the first turn that is sent once more."""
    turns = ["make an id", f"make an id {ORDER} again", "make an id"]

    def serve(c: socket.socket) -> None:
        while read_request(c):
            c.sendall(plain(whole(ORDER)))

    with log.serve(serve) as client:
        for n, prompt in enumerate(turns, 1):
            client.sendall(asked(stream=False, messages=[{"role": "user", "content": prompt}]))
            assert log.ends(n)[-1]["outcome"] == "ok"


def test_ledger_tap_counts_a_client_that_hangs_up_as_aborted(log: Log) -> None:
    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(SSE_HEAD + delta("a"))
        c.recv(1)

    with log.serve(serve) as client:
        client.sendall(asked())
        client.recv(1 << 16)
        reset(client)
    assert log.ends()[0]["outcome"] == "aborted"


def test_ledger_tap_records_a_server_that_refuses(log: Log) -> None:
    with log.serve(None) as client:
        client.sendall(asked())
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 502")
        (row,) = log.ends()
    assert row["outcome"] == "connect_error"


def test_ledger_tap_keeps_keys_out_of_its_rows(log: Log) -> None:
    boom = plain(b'{"error":{"message":"bad key sk-secret of Bearer abc-token-1"}}', b"500 Internal Server Error")
    with log.serve(answer(boom)) as client:
        request = asked(stream=False).replace(b"Host: x", b"Host: x\r\nAuthorization: Bearer abc-token-1")
        client.sendall(request)
        (row,) = log.ends()
    assert "sk-secret" not in json.dumps(row) and "abc-token-1" not in json.dumps(row)
    assert "bad key" in row["error"]


@pytest.mark.parametrize(
    ("first", "what"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "the client speaks HTTP/2"),
        (b"\x16\x03\x01\x00\x05hello", "the client speaks TLS"),
        (b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "WebSocket"),
    ],
)
def test_ledger_tap_counts_connections_that_it_cannot_read(log: Log, first: bytes, what: str) -> None:
    """Their bytes pass unchanged."""

    def serve(c: socket.socket) -> None:
        got = c.recv(1 << 16)
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + got[:8])
        c.recv(1)

    with log.serve(serve) as client:
        client.sendall(first)
        assert client.recv(1 << 16).endswith(first[:8])
    until(lambda: log.log.not_read, "a connection that is not read")
    ((name, count),) = log.log.not_read.items()
    assert what in name and count == 1


@pytest.mark.parametrize("bad", ["request", "answer", "second request"])
def test_ledger_tap_leaves_nothing_in_flight_where_bytes_are_no_http(log: Log, bad: str) -> None:
    """They would look like a server that hangs."""

    def serve(c: socket.socket) -> None:
        c.recv(1 << 16)
        if bad != "second request":
            c.sendall(b"NOT HTTP AT ALL\r\n\r\n" if bad == "answer" else plain(whole("one")))
        while c.recv(1 << 16):
            pass

    with log.serve(serve) as client:
        if bad != "request":
            client.sendall(asked(stream=False))
            until(lambda: log.log.recorder.begun, "the first request")
        if bad != "answer":
            client.sendall(b"\x00\x01\x02 no request\r\n\r\n")
        until(lambda: log.log.not_read, "a connection that is not read")
    assert not log.log.recorder.in_flight


def test_ledger_tap_forgives_a_connection_that_was_idle_too_long(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server closes an idle connection as it is used again: the client repeats that request, and nothing is lost."""
    limits = WireTimeouts(retry_idle_ns=1)
    monkeypatch.setattr("loadchaos.load.wire.seen_exchange.WireTimeouts", lambda: limits)

    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(plain(whole("one")))
        read_request(c)

    with log.serve(serve) as client:
        client.sendall(asked(stream=False))
        client.recv(1 << 16)
        client.sendall(asked(stream=False))
        ends = log.ends(2)
    assert [row["outcome"] for row in ends] == ["ok", "aborted"]
    assert "once more" in ends[1]["detail"]["why"]


def test_answer_behind_its_end_is_marked(log: Log) -> None:
    again = [delta(" l")] * 30
    with log.serve(answer(SSE_HEAD, *again, delta("", "stop"), DONE)) as client:
        for more in ({}, {"ignore_eos": True}):
            client.sendall(asked(max_tokens=64, **more))
            log.ends(1 + bool(more))
    signs = [set(row["signs"]) for row in log.ends(2)]
    assert signs == [{"repeated_token", "one_word"}, {"repeated_token", "one_word", "ignores_eos"}]
