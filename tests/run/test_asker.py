import asyncio
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loadchaos.core import http_client
from loadchaos.core.model import Facts
from loadchaos.core.redact import Redactor
from loadchaos.load import registry
from loadchaos.load.wire.answer_reader import AnswerRules
from loadchaos.load.wire.request import WireTimeouts
from loadchaos.profile.profile import from_mapping
from loadchaos.run import answer_baseline, asker
from loadchaos.run.asker import HttpAsker
from loadchaos.run.last_question import LastQuestion
from loadchaos.server.answer import Answer
from loadchaos.server.dialects import UNKNOWN, Dialect
from loadchaos.server.discovery.client import DiscoveryClient
from loadchaos.server.monitor.canary import Canary
from loadchaos.server.probes.ask import Purpose, RecordedAsker
from loadchaos.server.probes.question import Question
from tests.load.wire import conformance
from tests.load.wire.conformance import DEAD, SHED, TABLE, VALIDATION
from tests.load.wire.misbehaving import (
    DONE,
    GOOD,
    JSON_HEAD,
    STOP,
    Misbehaving,
    close,
    delta,
    frame,
    plain,
    stream,
    then,
    whole,
)
from tests.raw_sockets import Handler, chunk
from tests.waiting import beside

DIALECT = Dialect("misbehaving", "misbehaving server", validation=VALIDATION, shed=SHED, engine_dead=DEAD)
OF_THE_REQUEST = (
    "nonce",
    "schema_violated",
    "schema_answer_is_no_json",
    "tools_arguments",
    "tools_unknown",
    "tools_not",
    "tools_auto_",
    "tools_none_",
    "no_logprobs",
    "length_after_5_tokens",
)
"""Parts of the names of modes that only a request with a secret word, a schema, tools, logprobs or a limit of tokens tells
from a right answer.
"""
WAITING = ("not_http",)
"""httpx waits for the end of what is no response head; the load does not."""
ROWS = [
    (mode, stream, expected)
    for mode, kinds, expected in TABLE
    for stream in kinds
    if mode not in WAITING and not any(part in mode for part in OF_THE_REQUEST)
]


@pytest.fixture(scope="module")
def server() -> Iterator[Misbehaving]:
    with Misbehaving() as it:
        it.modes |= MORE_MODES
        yield it


def ask(url: str, dialect: Dialect, *, stream: bool, **options: Any) -> Answer:
    async def send() -> Answer:
        async with http_client.client() as http:
            asker = HttpAsker(http, dialect)
            body = b'{"max_tokens":32}'
            return await asker.ask(f"{url}/v1/chat/completions", body, limit_s=60.0, stream=stream, **options)

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("mode", "stream", "expected"), ROWS, ids=[f"{m}-{'stream' if s else 'whole'}" for m, s, _ in ROWS]
)
def test_outcome_of_a_question_is_that_of_a_request_of_the_load(
    server: Misbehaving, mode: str, stream: bool, expected: str
) -> None:
    silence_s = 0.5 if expected == "stalled" else 30.0
    answers = conformance.rules_of(mode).answers
    answer = ask(server.url_of(mode), DIALECT, stream=stream, silence_s=silence_s, answers=answers)
    assert answer.outcome == expected, answer
    assert (answer.error == "") == (expected == "ok")


def then_close(data: bytes) -> Handler:
    return then(data, close)


def endless_stream(peer: socket.socket) -> None:
    piece = chunk(b"".join(frame(delta(content=f"{'word' * 4000} {n}")) for n in range(4)))
    peer.sendall(stream(end=b""))
    while True:
        peer.sendall(piece)


def huge_body(peer: socket.socket) -> None:
    peer.sendall(JSON_HEAD + b'Content-Length: %d\r\n\r\n{"a":"' % (100 << 20))
    for _ in range(100):
        peer.sendall(b"x" * (1 << 20))


LOGPROBS = {"content": [1, {"token": {}}]}
MORE_MODES: dict[str, bytes | Handler] = {
    "empty_choices": plain({"id": "c", "choices": []}),
    "endless_stream": endless_stream,
    "huge_body": huge_body,
    "id_is_an_object": plain({**whole(usage=None), "id": {}}),
    "id_is_an_object_in_a_stream": stream(*[frame({**delta(content="Hel"), "id": {}})] * 3, STOP, DONE),
    "usage_is_a_list": plain(whole(usage=[3, 1])),
    "content_is_a_number": plain(whole(7, usage=None)),
    "finish_is_an_object": plain({"choices": [{"message": {"content": "Hello"}, "finish_reason": {"type": "stop"}}]}),
    "logprobs_are_numbers": plain({"choices": [{"message": {"content": "Hello"}, "logprobs": LOGPROBS}]}),
    "one_token": plain(whole(usage={"prompt_tokens": 3, "completion_tokens": 1})),
    "total_is_not_the_sum_of_one_token": plain(
        whole(usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 9})
    ),
    "one_reasoning": plain(whole(None, usage=None, reasoning="hm")),
    "closed_in_the_head": then_close(b"HTTP/1.1 200 OK\r\nContent-"),
    "not_http_then_closed": then_close(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "text_of_an_object_after_done": stream(*GOOD, frame({**delta(content="more"), "id": {}})),
}
"""Answers beside those of the table, which no request of the load is judged by."""
SAME_FOR_ALL = [
    *MORE_MODES,
    *("whole_usage_missing", "whole_finish_error", "whole_nothing", "whole_wrong_types"),
    *("whole_shorter_than_promised", "status_500_text", "status_400_unknown", "error_object_200", "html"),
    *("closed_before_headers", "usage_late", "finish_error", "reasoning_only", "no_finish_done", "no_finish_no_done"),
    *("closed_mid_frame", "error_after_finish"),
]
TEXT = {"name": "text", "payload": {"text": {"tokens": 16}}, "output": {"max": 8}}
PROFILE = {"name": "x", "traffic": [TEXT], "load": [{"users": 1, "for": "2m"}]}


def asked_by_all(url: str) -> dict[str, tuple[Any, Any, Any]]:
    """What each asker makes of an answer: outcome (where it records one), status and error."""
    facts = Facts(url, url, "openai", model="raw")
    profile = from_mapping(PROFILE, registry.traffic_registry())
    rows: list[Any] = []

    async def send() -> dict[str, tuple[Any, Any, Any]]:
        async with http_client.client() as http:
            http_asker = HttpAsker(http)
            canary = Canary(http_asker, url, "raw", rows.append, Redactor(), every_s=1.0)
            await canary._send("exact", "idle")
            record: Any = SimpleNamespace(event=rows.append)
            tested: Any = SimpleNamespace(url=url, asker=http_asker, down=False, state="healthy")
            last = LastQuestion(tested, record, Redactor())
            await last._send(facts)
            probes = RecordedAsker(http_asker, url, "raw", rows.append, Redactor())
            purpose = Purpose("reference", "copy", "idle")
            found: dict[str, tuple[Any, Any, Any]] = {
                row["row"]: (None, row["status"], row["error"]) for row in rows if row.get("what") == "answer"
            }
            for stream in (False, True):
                row = await probes.ask(Question("Hello", "", 8), purpose, stream=stream)
                found["streamed" if stream else "question"] = (None, row["status"], row["error"])
            answer = (await DiscoveryClient(http_asker, url, url).generate("raw", "Hello")).answer
            assert answer is not None
            found["discovery"] = answer.outcome, answer.status, answer.error[:400]
            rows.clear()
            await answer_baseline.learn(http_asker, url, profile, facts, rows.append, seed=1)
            found["baseline"] = rows[0]["outcome"], None, None
            return found

    return asyncio.run(send())


@pytest.mark.parametrize("mode", SAME_FOR_ALL)
def test_all_that_ask_make_the_same_of_the_same_bytes(
    server: Misbehaving, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_baseline, "_EACH", 1)
    monkeypatch.setattr(asker, "MOST_ANSWER_BYTES", 4 << 20)
    url = server.url_of(mode)
    limits = WireTimeouts(total_ns=1_000_000_000 if mode == "endless_stream" else 60_000_000_000)
    load = {
        streams: conformance.ask(url, stream=streams, judged_by=AnswerRules(UNKNOWN.outcome_rules), limits=limits)[
            "outcome"
        ]
        for streams in (False, True)
    }
    answers = {streams: ask(url, UNKNOWN, stream=streams) for streams in (False, True)}
    found = asked_by_all(url)
    assert {streams: answer.outcome for streams, answer in answers.items()} == load
    assert (found["discovery"][0], found["baseline"][0]) == (load[False], load[True])
    for who in ("canary", "last_question", "question", "streamed", "discovery"):
        if who == "last_question" and answers[False].outcome == "timeout":
            assert who not in found, "the server hangs"
            continue
        answer = answers[who == "streamed"]
        assert found[who][1:] == (answer.status, answer.error[:400]), who


@pytest.mark.parametrize("mode", ["headers_then_silence", "whole_half_then_silence", "whole_cut"])
def test_answer_that_is_cut_off_has_no_status(server: Misbehaving, mode: str) -> None:
    assert ask(server.url_of(mode), DIALECT, stream=False, silence_s=0.5).status == 0


def test_answer_keeps_reasoning_apart_and_tells_the_gaps_of_logprobs(server: Misbehaving) -> None:
    entries = [
        {"token": "a", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -2.0}]},
        {"token": "b", "logprob": -3.0, "top_logprobs": [{"logprob": -1.0}]},
        {"token": "c", "logprob": -1.0},
    ]
    message = {"content": "Hello", "reasoning_content": "hm"}
    choice = {"message": message, "finish_reason": "stop", "logprobs": {"content": entries}}
    server.modes["reasoning_and_logprobs"] = plain({"choices": [choice]})
    answer = ask(server.url_of("reasoning_and_logprobs"), UNKNOWN, stream=False)
    assert (answer.outcome, answer.text, answer.finish) == ("ok", "Hello", "stop")
    assert (answer.tokens, answer.gaps) == (["a", "b", "c"], [1.5, -2.0, 0.0])


def test_question_that_leaves_after_some_tokens_is_aborted(server: Misbehaving) -> None:
    answer = ask(server.url_of("tokens_then_silence"), DIALECT, stream=True, leave_after=2)
    assert (answer.outcome, answer.status) == ("aborted", 0)


async def test_question_that_is_not_waited_for_still_writes_its_row(server: Misbehaving) -> None:
    rows: list[Any] = []
    url = server.url_of("never")
    async with http_client.client() as http:
        canary = Canary(HttpAsker(http), url, "raw", rows.append, Redactor(), every_s=1.0)
        probes = RecordedAsker(HttpAsker(http), url, "raw", rows.append, Redactor())
        question = probes.ask(Question("Hello", "", 8), Purpose("reference", "copy", "idle"))
        async with beside(canary._send("exact", "load")), beside(question):
            await asyncio.sleep(0.2)
    ended = [row for row in rows if row.get("what") != "ask"]
    assert sorted((row["row"], row["status"], row["error"]) for row in ended) == [
        ("canary", 0, "not waited for"),
        ("question", 0, "not waited for"),
    ]
