import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loadchaos.core import bounded_http
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
from tests.load.wire.misbehaving import Misbehaving
from tests.run.conftest import Serve
from tests.run.raw_server import chunk
from tests.waiting import beside

DIALECT = Dialect("misbehaving", "misbehaving server", validation=VALIDATION, shed=SHED, engine_dead=DEAD)
OF_THE_REQUEST = (
    "nonce",
    "schema_violated",
    "schema_answer_is_no_json",
    "tools_arguments",
    "tools_unknown",
    "tools_not",
)
"""Parts of the names of modes that only a request with a secret word, a schema or tools can tell from a right answer."""
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
        yield it


def ask(url: str, dialect: Dialect, *, stream: bool, **options: Any) -> Answer:
    async def send() -> Answer:
        async with bounded_http.client() as http:
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


def head(status: int = 200, kind: str = "application/json", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", "Connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def page(body: Any, status: int = 200, kind: str = "application/json") -> list[bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [head(status, kind, f"Content-Length: {len(data)}") + data]


def events(*found: Any, length: int = 0, done: bool = True) -> list[bytes]:
    """A stream until the close of the connection, or with a length that may be too large."""
    frames = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in found)
    frames += b"data: [DONE]\n\n" * done
    return [head(200, "text/event-stream", *([f"Content-Length: {length}"] * bool(length))) + frames]


def whole(content: Any = "Hello", finish: Any = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **more.pop("message", {})}
    return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


def after_done(answer_id: Any) -> list[bytes]:
    return [b"data: " + json.dumps({**chunk("more"), "id": answer_id}).encode() + b"\n\n"]


def endless_stream() -> Iterator[bytes]:
    yield head(200, "text/event-stream")
    piece = b"".join(b"data: " + json.dumps(chunk(f"{'word' * 4000} {n}")).encode() + b"\n\n" for n in range(4))
    while True:
        yield piece


def huge_body() -> Iterator[bytes]:
    yield head(200, "application/json", f"Content-Length: {100 << 20}") + b'{"a":"'
    for _ in range(100):
        yield b"x" * (1 << 20)


ERROR = {"error": {"message": "backend exploded", "type": "InternalServerError", "code": 500}}
Reply = Callable[[], Iterable[bytes]]
ANSWERS: dict[str, Reply] = {
    "right": lambda: page(whole(usage={"prompt_tokens": 3, "completion_tokens": 1})),
    "right_stream": lambda: events(chunk("Hello"), chunk(finish="stop")),
    "plain_503": lambda: page(b"Service Unavailable", 503, "text/plain"),
    "refusal": lambda: page({"error": {"message": "no such option", "code": 400}}, 400),
    "error_200": lambda: page(ERROR),
    "html": lambda: page(b"<html><body>welcome</body></html>", kind="text/html"),
    "nothing": lambda: page(b""),
    "cut_stream": lambda: events(chunk("Hel"), length=4000, done=False),
    "stream_without_end": lambda: events(chunk("Hel"), done=False),
    "error_event": lambda: events(chunk("Hel"), ERROR),
    "finish_error": lambda: page(whole("internal error happened", "error")),
    "finish_error_stream": lambda: events(chunk("Hel"), chunk(finish="error")),
    "empty_choices": lambda: page({"id": "c", "choices": []}),
    "reasoning": lambda: page(whole(None, message={"reasoning": "hm"})),
    "reasoning_content": lambda: page(whole(None, message={"reasoning_content": "hm"})),
    "reasoning_stream": lambda: events(
        {"choices": [{"index": 0, "delta": {"content": None, "reasoning": "hm"}}]}, chunk(finish="length")
    ),
    "done_without_finish": lambda: events(chunk("Hel")),
    "endless_stream": endless_stream,
    "huge_body": huge_body,
    "choices_is_an_object": lambda: page({"choices": {}}),
    "id_is_an_object": lambda: page({**whole(), "id": {}}),
    "id_is_an_object_in_a_stream": lambda: events(
        *({**chunk("Hel"), "id": {}} for _ in range(3)), chunk(finish="stop")
    ),
    "usage_is_a_list": lambda: page(whole(usage=[3, 1])),
    "content_is_a_number": lambda: page(whole(7)),
    "finish_is_an_object": lambda: page(whole(finish={"type": "stop"})),
    "logprobs_are_numbers": lambda: page(
        {"choices": [{**whole()["choices"][0], "logprobs": {"content": [1, {"token": {}}]}}]}
    ),
    "total_is_not_the_sum": lambda: page(whole(usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 9})),
    "closed": list,
    "closed_in_the_head": lambda: [b"HTTP/1.1 200 OK\r\nContent-"],
    "closed_in_the_body": lambda: [head(200, "application/json", "Content-Length: 900") + b'{"choices":'],
    "not_http": lambda: [b"SSH-2.0-OpenSSH_9.2\r\n\r\n"],
    "text_of_another_after_done": lambda: [*events(chunk("Hel"), chunk(finish="stop")), *after_done({})],
}
TEXT = {"name": "text", "payload": {"text": {"tokens": 16}}, "output": {"max": 8}}
PROFILE = {"name": "x", "traffic": [TEXT], "load": [{"users": 1, "for": "2m"}]}


def asked_by_all(url: str) -> dict[str, tuple[Any, Any, Any]]:
    """What each asker makes of an answer: outcome (where it records one), status and error."""
    facts = Facts(url, url, "openai", model="raw")
    profile = from_mapping(PROFILE, registry.traffic_registry())
    rows: list[Any] = []

    async def send() -> dict[str, tuple[Any, Any, Any]]:
        async with bounded_http.client() as http:
            http_asker = HttpAsker(http)
            canary = Canary(http_asker, url, "raw", rows.append, Redactor(), every_s=1.0)
            await canary._send("exact", "idle")
            record: Any = SimpleNamespace(event=rows.append)
            tested: Any = SimpleNamespace(url=url, asker=http_asker, down=False, state="healthy")
            last = LastQuestion(tested, record, Redactor())
            await last._send("raw")
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


@pytest.mark.parametrize("name", ANSWERS)
def test_all_that_ask_make_the_same_of_the_same_bytes(name: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_baseline, "_EACH", 1)
    monkeypatch.setattr(asker, "MOST_ANSWER_BYTES", 4 << 20)
    server = serve(lambda number, asked: ANSWERS[name]())
    limits = WireTimeouts(total_ns=1_000_000_000 if name == "endless_stream" else 60_000_000_000)
    load = {
        stream: conformance.ask(server.url, stream=stream, judged_by=AnswerRules(UNKNOWN.outcome_rules), limits=limits)[
            "outcome"
        ]
        for stream in (False, True)
    }
    answers = {stream: ask(server.url, UNKNOWN, stream=stream) for stream in (False, True)}
    found = asked_by_all(server.url)
    assert {stream: answer.outcome for stream, answer in answers.items()} == load
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


def test_answer_keeps_reasoning_apart_and_tells_the_gaps_of_logprobs(serve: Serve) -> None:
    entries = [
        {"token": "a", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -2.0}]},
        {"token": "b", "logprob": -3.0, "top_logprobs": [{"logprob": -1.0}]},
        {"token": "c", "logprob": -1.0},
    ]
    body = whole("Hello", message={"reasoning_content": "hm"})
    body["choices"][0]["logprobs"] = {"content": entries}
    answer = ask(serve(lambda number, asked: page(body)).url, UNKNOWN, stream=False)
    assert (answer.outcome, answer.text, answer.finish) == ("ok", "Hello", "stop")
    assert (answer.tokens, answer.gaps) == (["a", "b", "c"], [1.5, -2.0, 0.0])


def test_question_that_leaves_after_some_tokens_is_aborted(server: Misbehaving) -> None:
    answer = ask(server.url_of("tokens_then_silence"), DIALECT, stream=True, leave_after=2)
    assert (answer.outcome, answer.status) == ("aborted", 0)


async def test_question_that_is_not_waited_for_still_writes_its_row() -> None:
    rows: list[Any] = []

    with Misbehaving() as silent:
        url = silent.url_of("never")
        async with bounded_http.client() as http:
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
