from collections.abc import Iterator

import pytest

from loadchaos.load.endpoints import DEFAULT, ENDPOINTS
from tests.load.wire.conformance import ask_endpoint
from tests.load.wire.endpoint_shapes import OUTCOMES_OF_BEHAVIOURS, SHAPES
from tests.load.wire.misbehaving import Misbehaving

OTHERS = {
    # An error object says why the response failed: it is judged as any error in a stream.
    ("responses", "answer_failed"): "stream_error",
    # The stop_reason of a failed or aborted answer is null (measured on vLLM 0.32.0).
    ("messages", "answer_failed"): "truncated",
    ("messages", "answer_aborted"): "truncated",
    ("messages", "whole_failed"): "truncated",
}
WRONG = {
    "event_number_missing": "stream_out_of_order", "event_number_repeated": "stream_out_of_order",
    "text_differs_from_its_pieces": "stream_contradicts", "two_ends": "second_done",
    "total_is_not_the_sum": "usage_contradicts", "schema_violated": "schema_violated",
    "tools_violated": "schema_violated", "foreign_nonce": "answer_of_another_request",
    **dict.fromkeys(
        (
            "whole_result_missing", "whole_result_twice", "whole_result_without_number", "whole_results_out_of_order",
            "whole_vector_of_zeros",
        ),
        "result_wrong",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Misbehaving]:
    with Misbehaving() as it:
        yield it


@pytest.mark.parametrize("name", SHAPES)
def test_endpoint_outcomes_are_those_of_the_table(server: Misbehaving, name: str) -> None:
    for behaviour, expected in OUTCOMES_OF_BEHAVIOURS.items():
        reply = ask_endpoint(server, name, behaviour)
        if reply is None:
            continue
        assert reply["outcome"] == OTHERS.get((name, behaviour), expected), (behaviour, reply)
        if behaviour in WRONG:
            assert [part["id"] for part in reply.get("wrong", [])] == [WRONG[behaviour]], (behaviour, reply)


def test_every_endpoint_has_a_shape() -> None:
    assert {*SHAPES, DEFAULT} == set(ENDPOINTS)


@pytest.mark.parametrize("name", [n for n, shape in SHAPES.items() if shape.streams])
def test_endpoint_stream_tells_text_usage_and_times(server: Misbehaving, name: str) -> None:
    reply = ask_endpoint(server, name, "good")
    assert reply is not None
    assert (reply["text"], reply["chunks"], reply["finish_reason"]) == ("Hello!", 3, "stop")
    assert (reply["prompt_tokens"], reply["completion_tokens"], reply["detail"].get("usage_missing")) == (17, 3, None)
    assert None not in (reply["first_token_ns"], reply["first_answer_ns"])
    assert reply.get("signs", []) == []
    if name not in {"completions", "transcriptions"}:
        assert reply["cached_tokens"] == 16
        thinking = ask_endpoint(server, name, "reasoning")
        assert thinking is not None
        assert thinking["text"] == "hmHello!"
    cut = ask_endpoint(server, name, "cut_by_length")
    assert cut is not None
    assert cut["finish_reason"] == "length"


def test_transcription_of_several_parts_has_their_texts_and_the_last_finish_reason(server: Misbehaving) -> None:
    reply = ask_endpoint(server, "transcriptions", "several_parts")
    assert reply is not None
    assert (reply["text"], reply["finish_reason"]) == ("Hello!" * 3, "stop")


@pytest.mark.parametrize("name", SHAPES)
def test_endpoint_error_of_a_dead_engine_keeps_its_text(server: Misbehaving, name: str) -> None:
    for behaviour in ("engine_dead_after_tokens", "whole_engine_dead", "whole_error_under_200"):
        reply = ask_endpoint(server, name, behaviour)
        assert reply is None or "EngineCore encountered an issue" in (reply["error"] or "")
