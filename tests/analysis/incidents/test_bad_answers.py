from dataclasses import replace

import pytest

from loadchaos.analysis.incidents.bad_answers import BadAnswer, failure_of, is_echo

DEADLY = "AssertionError: Encoder cache miss for 9f8a1c22d3e4f5a6."
ECHO = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def bad(outcome: str, text: str) -> BadAnswer:
    return BadAnswer(2, 1, "chat", outcome, text, 1, {"status": 200})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("outcome", "id_"),
    [
        ("stream_error", "encoder_cache_miss"), ("http_error", "encoder_cache_miss"),
        ("protocol_error", "unexplained_protocol_error"), ("finish_error", "unexplained_finish_error"),
        ("wrong_output", "unexplained_wrong_output"),
    ],
)  # fmt: skip
def test_deadly_text_that_a_model_may_have_written_names_no_failure(outcome: str, id_: str) -> None:
    assert failure_of(bad(outcome, f"it said: {DEADLY}" if outcome == "protocol_error" else DEADLY)).id == id_


@pytest.mark.parametrize(
    ("outcome", "echo"),
    [("stream_error", True), ("http_error", True), ("protocol_error", False), ("finish_error", False)],
)
def test_echo_of_a_death_is_no_text_of_a_model(outcome: str, echo: bool) -> None:
    assert is_echo(bad(outcome, ECHO)) is echo


@pytest.mark.parametrize(
    ("reason", "id_"),
    [
        ("content_filter", "answers_filtered"), ("RECITATION", "answers_filtered"), ("SAFETY", "answers_filtered"),
        ("insufficient_system_resource", "unusual_finish_reason"), ("timeout", "unusual_finish_reason"),
    ],
)  # fmt: skip
def test_finish_reason_tells_a_policy_from_other_ends(reason: str, id_: str) -> None:
    answer = replace(bad("finish_abort", f"unrequested finish_reason {reason}"), sample={"finish_reason": reason})  # type: ignore[typeddict-item]
    assert failure_of(answer).id == id_


@pytest.mark.parametrize(
    ("outcome", "text", "title"),
    [
        ("truncated", "the stream ended without its [DONE]", "Incomplete answer: the stream ended without its [DONE]"),
        ("http_error", "backend exploded", "Error in place of an answer, with status 200: backend exploded"),
    ],
)
def test_title_does_not_contradict_what_the_server_sent(outcome: str, text: str, title: str) -> None:
    assert failure_of(bad(outcome, text)).title == title
