import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadchaos.core.model import OUTCOMES
from loadchaos.core.outcome_rules import (
    OutcomeRules,
    error_event_outcome,
    error_object,
    error_response_event,
    error_response_outcome,
)
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules, final_event
from loadchaos.load.wire.decision import signs
from loadchaos.server.dialects.sglang import SGLANG

SERVER = OutcomeRules(
    validation=(re.compile("too long"),), shed=(re.compile("busy"),), engine_dead=(re.compile("dead"),)
)
RULES = AnswerRules(SERVER)
WORDS = st.sampled_from(["", "stop", "error", "abort", "busy", "too long"])
KEYS = st.sampled_from([
    "choices", "delta", "content", "finish_reason", "index", "error", "message", "code", "usage", "text", "tool_calls",
    "object", "detail", "error_code", "id",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 700) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
CHOICE = st.fixed_dictionaries({}, optional=dict.fromkeys(("index", "delta", "message", "text", "finish_reason"), JSON))
CHOICES = st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=3)})
EVENT = (JSON | CHOICES).map(orjson.dumps) | st.binary(max_size=20) | st.just(b"[DONE]")
STREAM = st.lists(EVENT, max_size=8).map(lambda events: b"".join(b"data: " + e + b"\n\n" for e in events))


def outcome(body: bytes, *, stream: bool, complete: bool = True, size: int = 10_000) -> str:
    answer = AnswerReader(RULES, asked_stream=stream, declared_stream=stream)
    for n, at in enumerate(range(0, len(body), size)):
        answer.feed(n, body[at : at + size])
    answer.close(10**6, complete=complete)
    found = [*answer.outcome_events, final_event(answer)]
    return found[0].outcome


@settings(max_examples=300)
@given(
    body=STREAM | JSON.map(orjson.dumps) | CHOICES.map(orjson.dumps) | st.binary(max_size=60),
    stream=st.booleans(),
    size=st.integers(1, 60),
    complete=st.booleans(),
)
def test_completion_has_one_outcome_for_any_body_in_any_packets(
    body: bytes, stream: bool, size: int, complete: bool
) -> None:
    first = outcome(body, stream=stream, complete=complete)
    assert first in OUTCOMES
    assert outcome(body, stream=stream, complete=complete, size=size) == first


@given(value=JSON, status=st.integers(300, 599), after=st.booleans())
def test_error_object_of_any_json_is_an_error_or_none(value: Any, status: int, after: bool) -> None:
    error = error_object(value)
    assert error_response_outcome(status, {}, error, "", SERVER) in OUTCOMES
    if error is not None:
        assert error_event_outcome(error, after_token=after, rules=SERVER) in OUTCOMES


@pytest.mark.parametrize(
    ("value", "text", "code"),
    [
        ({"error": {"message": "m", "type": "t", "code": 400}}, "m", 400),
        ({"error": {"message": "m", "code": "rate_limit"}}, "m", "rate_limit"),
        ({"error": {"message": "m", "code": "503"}}, "m", 503),
        ({"error": "plain"}, "plain", None),
        ({"object": "error", "message": "flat", "code": 404}, "flat", 404),
        ({"type": "error", "error": {"type": "api_error", "message": "inner"}}, "inner", None),
        ({"error_code": 10402, "error_msg": "quota"}, "quota", 10402),
        ({"detail": "Not Found"}, "Not Found", None),
        ({"detail": [{"loc": ["body"]}]}, '[{"loc":["body"]}]', None),
        ({"error": {"message": {"error": {"message": "deep"}}}}, "deep", None),
        ({"choices": [], "error": {"message": "beside", "code": 500}}, "beside", 500),
    ],
)  # fmt: skip
def test_error_object_reads_the_shapes_of_all_servers(value: Any, text: str, code: Any) -> None:
    error = error_object(value)
    assert error is not None
    assert (error.text, error.code) == (text, code)


@pytest.mark.parametrize(
    "value",
    [
        None, 7, [], {}, {"error": None, "choices": []}, {"choices": [], "detail": "x"}, {"error": "", "choices": []},
        {"error": {}, "choices": []}, {"error_code": 0, "error_msg": "success", "choices": []},
    ],
)  # fmt: skip
def test_error_object_is_none_for_other_json(value: Any) -> None:
    assert error_object(value) is None


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["", "stop"], "ok"), (["", ""], "truncated"), ([None, "error_finish"], "finish_error"),
        ([None, "aborted"], "finish_abort"), ([None, "repetition"], "ok"),
    ],
)  # fmt: skip
def test_completion_end_decides_its_outcome(reasons: list[str | None], expected: str) -> None:
    body = b"".join(chunk("a", finish=reason) for reason in reasons) + b"data: [DONE]\n\n"
    assert outcome(body, stream=True) == expected


def chunk(text: str, index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


def test_completion_gaps_are_counted_between_packets() -> None:
    answer = AnswerReader(RULES, asked_stream=True, declared_stream=True)
    answer.feed(1_000_000, chunk("a") + chunk("b") + chunk("c"))
    answer.feed(41_000_000, chunk("d") + chunk("e"))
    answer.feed(81_000_000, chunk("f", finish="stop"))
    answer.close(90_000_000, complete=True)
    assert (answer.chunks, sum(answer.itl_hist.values()), answer.largest_gap_ns) == (6, 2, 40_000_000)
    assert answer.first_token_ns == 1_000_000


def test_completion_gaps_between_reasoning_tokens_count() -> None:
    answer = AnswerReader(RULES, asked_stream=True, declared_stream=True)
    for n, key in enumerate(("reasoning", "reasoning", "reasoning_content", "content", "content")):
        event = {"choices": [{"index": 0, "delta": {key: "a"}, "finish_reason": None}]}
        answer.feed(1_000_000 * (1 + n * n), b"data: " + orjson.dumps(event) + b"\n\n")
    assert (sum(answer.itl_hist.values()), answer.largest_gap_ns) == (4, 7_000_000)
    assert (answer.first_token_ns, answer.first_answer_ns) == (1_000_000, 10_000_000)


def test_completion_needs_a_finish_reason_of_every_choice() -> None:
    done = b"data: [DONE]\n\n"
    assert outcome(chunk("a", 0, "stop") + chunk("b", 1) + done, stream=True) == "truncated"
    assert outcome(chunk("a", 0, "stop") + chunk("b", 1, "stop") + done, stream=True) == "ok"


def test_completion_of_an_endless_answer_is_parsed_as_it_arrives() -> None:
    answer = AnswerReader(RULES, asked_stream=True, declared_stream=True)
    for n in range(3000):
        answer.feed(n, chunk("word"))
    assert answer.chunks == 3000


def test_completion_bounds_a_body_that_is_one_json_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadchaos.load.wire.answer_reader.MAX_BODY_BYTES", 1 << 20)
    answer = AnswerReader(RULES, asked_stream=False, declared_stream=False)
    for n in range(20):
        answer.feed(n, b'{"a": "' + b"x" * 65536)
    assert answer.fault == "the body is longer than 1 MiB"
    answer.close(20, complete=True)
    assert answer.outcome_events == []


@pytest.mark.parametrize(
    ("status", "headers", "text"),
    [
        (429, {}, "engine dead"),
        (503, {"retry-after": "5"}, "engine dead"),
        (503, {}, "busy, as the engine is dead"),
        (400, {}, "too long for a dead engine"),
        (422, {}, "engine dead"),
    ],
)
def test_error_response_of_a_dead_engine_is_an_http_error(status: int, headers: dict[str, str], text: str) -> None:
    """Whatever else it looks like: shed, or a refusal."""
    rules = replace(SERVER, plain_validation=frozenset({400, 422}))
    body = orjson.dumps({"error": {"message": text, "code": status}})
    assert error_response_event(status, "X", headers, body, rules).outcome == "http_error"
    healthy = orjson.dumps({"error": {"message": text.replace("dead", "fine"), "code": status}})
    assert error_response_event(status, "X", headers, healthy, rules).outcome != "http_error"


@pytest.mark.parametrize(("status", "expected"), [(400, "rejected"), (413, "rejected"), (500, "http_error")])
def test_error_response_with_text_of_a_refusal_is_one_below_500_only(status: int, expected: str) -> None:
    body = orjson.dumps({"error": {"message": "the prompt is too long", "code": status}})
    assert error_response_event(status, "X", {}, body, SERVER).outcome == expected


@pytest.mark.parametrize(("code", "found"), [(400, "rejected"), (500, "stream_error")])
def test_error_event_of_sglang_is_a_refusal_by_its_code(code: int, found: str) -> None:
    """SGLang 0.5.23 compiles the schema of a request after its stream began."""
    text = 'Failed to compile json grammar: /project/cpp/json_schema_converter.cc:4175: Unsupported type "wizard"\n'
    error = error_object({"error": {"object": "error", "message": text, "type": "BadRequest", "code": code}})
    assert error is not None
    assert error_event_outcome(error, after_token=False, rules=SGLANG.outcome_rules) == found


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("messages", {"content": [{"type": {}, "text": "a"}], "stop_reason": "end_turn"}),
        ("responses", {"output": [{"type": {}}], "status": "completed"}),
        ("responses", {"output": [], "status": {}}),
        ("responses", {"output": [], "status": "incomplete", "incomplete_details": {"reason": {}}}),
    ],
)
def test_completion_names_of_any_type_are_no_exception(endpoint: str, body: dict[str, Any]) -> None:
    answer = ENDPOINTS[endpoint].answer(AnswerRules(), asked_stream=False, declared_stream=False)
    answer.feed(0, orjson.dumps(body))
    answer.close(0, complete=True)


def test_completion_text_after_done_may_have_an_id_of_any_type() -> None:
    answer = AnswerReader(AnswerRules(), asked_stream=True, declared_stream=True)
    answer.feed(0, b'data: [DONE]\n\ndata: {"id":{},"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
    assert [event.outcome for event in answer.outcome_events][-1] == "wrong_output"


def test_answer_whose_tokens_have_no_text_says_so() -> None:
    answer = AnswerReader(RULES, asked_stream=False, declared_stream=False)
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
    answer.feed(1, json.dumps({"id": "a", "choices": [choice], "usage": {"completion_tokens": 3}}).encode())
    answer.close(2, complete=True)
    assert final_event(answer).outcome == "ok"
    assert answer.anomalies("application/json") == {"no_text": True}


def test_the_last_label_of_a_stream_counts_and_other_values_are_not_read() -> None:
    answer = AnswerReader(RULES, asked_stream=True, declared_stream=True)
    for tier in ("auto", None, {"a": 1}, "flex", "", None):
        answer.feed(1, b"data: " + orjson.dumps({"service_tier": tier, "choices": []}) + b"\n\n")
    assert answer.labels == {"service_tier": "flex"}


def deltas(*found: dict[str, Any]) -> AnswerReader:
    """A reader after one event a second with each of these deltas; the last one ends the answer."""
    answer = AnswerReader(RULES, asked_stream=True, declared_stream=True)
    for second, delta in enumerate([*found, {}], 1):
        finish = "stop" if second > len(found) else None
        data = orjson.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        answer.feed(second * 1_000_000_000, b"data: " + data + b"\n\n")
    return answer


def test_text_in_a_field_that_nobody_reads_is_named_and_is_progress() -> None:
    answer = AnswerReader(RULES, asked_stream=True, declared_stream=True)
    new = [
        answer.feed(
            i, b'data: {"choices":[{"index":0,"delta":{"inner_voice":"word %d"},"finish_reason":null}]}\n\n' % i
        )
        for i in range(1, 5)
    ]
    assert new == [1, 1, 1, 1]
    assert answer.chunks == 0
    assert answer.anomalies("text/event-stream")["unread_text"] == "inner_voice"


@pytest.mark.parametrize(
    "field",
    [
        lambda text: {"inner_blocks": [{"type": "thinking", "thinking": text}]},
        lambda text: {"content": "", "provider_specific_fields": {"inner": {"voice": text}}},
    ],
    ids=["parts", "nested"],
)
def test_text_inside_a_field_that_nobody_reads_is_named(field: Callable[[str], dict[str, Any]]) -> None:
    found = deltas(*[field(f"word{i} ") for i in range(9)], {"content": "yes"}).anomalies("text/event-stream")
    assert found["unread_text"] in ("inner_blocks", "provider_specific_fields")


def test_thought_in_an_object_is_read() -> None:
    answer = deltas({"reasoning": {"content": "hm"}}, {"content": "yes"})
    assert (answer.chunks, answer.text) == (2, "hmyes")


def test_thought_under_two_names_is_read_once() -> None:
    answer = deltas(
        *[{"reasoning": f"word{n} ", "reasoning_content": f"word{n} "} for n in range(9)], {"content": "yes"}
    )
    assert answer.text == "".join(f"word{n} " for n in range(9)) + "yes"
    assert "token_pairs" not in signs(answer, answer.text)


@pytest.mark.parametrize(
    ("texts", "finish", "broken"),
    [
        (("a\ufffd", "b"), "length", True),
        (("ab", "\ufffd"), "length", False),
        (("ab", "\ufffd"), "stop", True),
    ],
)
def test_character_that_the_limit_on_tokens_cuts_is_no_sign(texts: tuple[str, ...], finish: str, broken: bool) -> None:
    answer = deltas(*[{"content": text} for text in texts])
    answer.finish[0] = finish
    assert ("replacement_character" in signs(answer, answer.text)) == broken


@pytest.mark.parametrize(
    "found",
    [
        [{"role": "assistant", "content": ""}, *[{"content": f"a{i}", "extra": f"b{i}"} for i in range(9)]],
        [{"content": "", "channel": "analysis"}] * 9,
        [{"reasoning_content": f"a{i}"} for i in range(9)],
        [{"content": "", "reasoning_details": [{"type": "reasoning.text", "text": f"a{i}"}]} for i in range(9)],
        [{"tool_calls": [{"index": 0, "function": {"arguments": f"a{i}"}}], "extra": f"b{i}"} for i in range(9)],
        [{"content": ""}, {"signature": "abcdef"}, {"content": "a"}],
    ],
    ids=["beside content", "a constant", "thought", "details", "beside a call", "once"],
)
def test_other_fields_of_a_delta_are_no_text(found: list[dict[str, Any]]) -> None:
    assert "unread_text" not in deltas(*found).anomalies("text/event-stream")
