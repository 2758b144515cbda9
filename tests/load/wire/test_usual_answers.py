"""The short cuts for usual answers give what the full reading gives."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadchaos.load.wire import completion, outcome
from loadchaos.load.wire.completion import Completion
from loadchaos.load.wire.outcome import OutcomeRules

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


def read(data: object, sizes: list[int], begin: bytes = b"") -> list[Any]:
    """Everything that an answer says after its last byte, but for the texts of errors."""
    answer = Completion(OutcomeRules(answers=1), asked_stream=False, declared_stream=False)
    body, at = begin + orjson.dumps(data), 0
    for size in [*sizes, len(body)]:
        answer.feed(1, body[at : at + size])
        at += size
    answer.close(2, complete=True)
    said = [
        "text", "finish", "usage", "answer_id", "has_text", "has_answer", "has_calls", "is_stream", "disorder", "id_changes",
        "drafts", "_number",
    ]  # fmt: skip
    events = [(event.outcome, event.code) for event in answer.outcome_events]
    final, odd = completion.final_event(answer), answer.anomalies("application/json")
    return [events, *(getattr(answer, name) for name in said), final, odd]


@given(data=ANSWERS, sizes=st.lists(st.integers(1, 9), max_size=3))
def test_usual_answers_are_read_as_all_others(data: dict[str, Any], sizes: list[int]) -> None:
    quick = read(data, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "ANSWER_KEYS", frozenset())
        patch.setattr(completion, "ANSWER_KEYS", frozenset())
        for choice in data["choices"]:
            choice["message"]["unknown"] = None  # so that no message is a usual one
        assert read(data, sizes, b" ") == quick


@example(data={"object": "error", "choices": []})
@given(data=st.one_of(ANSWERS, st.dictionaries(st.sampled_from(TOP_KEYS), VALUES), VALUES))
def test_usual_answers_hide_no_error_object(data: object) -> None:
    quick = outcome.error_object(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "ANSWER_KEYS", frozenset())
        assert outcome.error_object(data) == quick
