from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadchaos.core import outcome_rules
from loadchaos.load.wire import answer_reader
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.decision import signs, wrong_parts

VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "error", "a text", 0, 7, 10402, {}, [], {"message": "out of memory", "code": 500}]
)
TOP_KEYS = (
    "id", "object", "model", "choices", "usage", "error", "type", "error_code", "error_msg", "detail", "message", "code",
    "sequence_number", "timings", "metrics",
)  # fmt: skip
MESSAGES = st.dictionaries(
    st.sampled_from(["role", "content", "reasoning", "refusal", "tool_calls", "function_call"]), VALUES, max_size=4
)
CHOICES = st.lists(
    st.fixed_dictionaries(
        {"message": MESSAGES},
        optional={"index": st.sampled_from([0, 1, "0"]), "finish_reason": st.sampled_from([None, "stop", "abort", 3])},
    ),
    max_size=2,
)
USAGES: st.SearchStrategy[Any] = st.sampled_from(
    [None, {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}, [], {"prompt_tokens": 1}]
)
ANSWERS = st.builds(
    lambda odd, choices, usage: {**odd, "choices": choices, "usage": usage},
    st.dictionaries(st.sampled_from(TOP_KEYS), VALUES, max_size=3),
    CHOICES,
    USAGES,
)


@st.composite
def nearly_usual(draw: st.DrawFn) -> dict[str, Any]:
    """A usual answer with up to two parts changed, added or left out."""
    message: dict[str, Any] = {"role": "assistant", "content": "a text"}
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": draw(st.sampled_from(["stop", "length"])),
    }
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": 9}}
    changes = st.tuples(
        st.sampled_from([message, choice, answer]), VALUES | st.sampled_from([True, 0.0, 1]), st.booleans()
    )
    for part, value, kept in draw(st.lists(changes, max_size=2)):
        key = draw(st.sampled_from([*part, "logprobs", "reasoning", "n"]))
        if kept:
            part[key] = value
        else:
            part.pop(key, None)
    return answer


def read(data: object, sizes: list[int], begin: bytes = b"") -> list[Any]:
    """Everything that an answer says after its last byte, but for the texts of errors."""
    answer = AnswerReader(AnswerRules(answers=1), asked_stream=False, declared_stream=False)
    body, at = begin + orjson.dumps(data), 0
    for size in [*sizes, len(body)]:
        answer.feed(1, body[at : at + size])
        at += size
    answer.close(2, complete=True)
    said = [
        "text", "finish", "usage", "answer_id", "has_text", "has_answer", "has_calls", "is_stream", "disorder", "id_changes",
        "logprob_entries",
        "drafts", "_number",
    ]  # fmt: skip
    events = [(event.outcome, event.code) for event in answer.outcome_events]
    final, odd = answer_reader.final_event(answer), answer.anomalies("application/json")
    return [events, *(getattr(answer, name) for name in said), final, odd]


def beside(key: str, value: object) -> dict[str, Any]:
    """A usual answer with one key more in its message."""
    message = {"role": "assistant", "content": "a text", key: value}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"id": "chatcmpl-1", "choices": choices, "usage": {"completion_tokens": 9}}


@settings(max_examples=300)
@example(data=beside("tool_calls", [{"function": {"name": "look_up", "arguments": "{}"}}]), sizes=[])
@example(data=beside("reasoning", "a thought"), sizes=[])
@given(data=ANSWERS | nearly_usual(), sizes=st.lists(st.integers(1, 9), max_size=3))
def test_usual_answers_are_read_as_all_others(data: dict[str, Any], sizes: list[int]) -> None:
    quick = read(data, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome_rules, "ANSWER_KEYS", frozenset())
        patch.setattr(answer_reader, "ANSWER_KEYS", frozenset())
        choices = data.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice.get("message"), dict):
                choice["message"]["unknown"] = None  # so that no message is a usual one
        assert read(data, sizes, b" ") == quick


@example(data={"object": "error", "choices": []})
@given(data=st.one_of(ANSWERS, st.dictionaries(st.sampled_from(TOP_KEYS), VALUES), VALUES))
def test_usual_answers_hide_no_error_object(data: object) -> None:
    quick = outcome_rules.error_object(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome_rules, "ANSWER_KEYS", frozenset())
        assert outcome_rules.error_object(data) == quick


@pytest.mark.parametrize(("tokens", "wrong"), [(2, True), (3, False), (4, True)])
def test_usual_answers_count_log_probabilities(tokens: int, wrong: bool) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    choice["logprobs"] = {"content": [{"token": "a", "logprob": -0.5}] * 3}
    answer = AnswerReader(AnswerRules(), asked_stream=False, declared_stream=False)
    answer.feed(1, orjson.dumps({"id": "x", "choices": [choice], "usage": {"completion_tokens": tokens}}))
    answer.close(2, complete=True)
    assert answer.logprob_entries == 3
    assert ("logprob_count" in signs(answer, "a")) == wrong


@pytest.mark.parametrize(("value", "wrong"), [(-0.5, []), (0.7, ["logprob_above_zero"])])
def test_log_probabilities_of_completions_are_read(value: float, wrong: list[str]) -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, value], "top_logprobs": None}
    choice = {"index": 0, "text": "ab", "finish_reason": "stop", "logprobs": logprobs}
    answer = AnswerReader(AnswerRules(), asked_stream=False, declared_stream=False)
    answer.feed(1, orjson.dumps({"id": "x", "choices": [choice], "usage": {"completion_tokens": 2}}))
    answer.close(2, complete=True)
    assert answer.logprob_entries == 2
    assert [part["id"] for part in wrong_parts(answer)] == wrong
