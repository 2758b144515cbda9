"""AIPerf's traces with sessions: each turn waits for the answer before it."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.replay.sources import read_source
from loadchaos.core.errors import OptionError
from loadchaos.profile.request_trace import RequestTrace
from tests.invoking import output_of

MESSAGES = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "q2"},
]


def trace_of(folder: Path, *rows: dict[str, Any]) -> RequestTrace:
    file = folder / "aiperf.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_source(file, folder / "scratch")


def bodies(trace: RequestTrace) -> list[dict[str, Any]]:
    return [json.loads(trace.body_file(send).read_bytes()) for send in trace.sends]


def causes(trace: RequestTrace) -> list[list[tuple[str, str, float]]]:
    return [[(c.request, c.event, c.delay_s) for c in send.after] for send in trace.sends]


def test_turns_wait_for_answers_and_repeat_what_was_before(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        {"session_id": "a", "timestamp": 1000, "input_length": 30, "output_length": 4},
        {"session_id": "b", "timestamp": 1500, "text_input": "hello you", "output_length": 2},
        {"session_id": "a", "delay": 250, "input_length": 9, "output_length": 5},
        {"session_id": "a", "input_length": 6},
    )
    assert [send.at_s for send in trace.sends] == [0.0, 0.5, 0.0, 0.0]
    assert causes(trace) == [[], [], [("r0", "end", 0.25)], [("r2", "end", 0.0)]]
    first, other, second, third = bodies(trace)
    assert [len(m["content"].split()) for m in third["messages"]] == [30, 4, 9, 5, 6]
    assert [m["role"] for m in third["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert second["messages"] == third["messages"][:3]
    assert first["messages"] == third["messages"][:1]
    assert other["messages"] == [{"role": "user", "content": "hello you"}]
    assert [b["max_tokens"] for b in (first, other, second, third)] == [4, 2, 5, 128]
    assert [b.get("min_tokens") for b in (first, other, second, third)] == [4, None, 5, None]


def test_a_turn_with_a_time_waits_for_both(tmp_path: Path) -> None:
    rows = ({"session_id": "a", "timestamp": at, "input_length": 5, "output_length": 1} for at in (2000, 5000))
    assert causes(trace_of(tmp_path, *rows))[1] == [("r0", "end", 0.0), ("r0", "begin", 3.0)]


def test_sessions_without_times_go_on_eight_side_by_side(tmp_path: Path) -> None:
    rows = [{"session_id": str(n // 2), "input_length": 5, "output_length": 1} for n in range(20)]
    found = causes(trace_of(tmp_path, *rows))
    assert found[:16:2] == [[]] * 8
    assert [found[16], found[17], found[18]] == [[("r1", "end", 0.0)], [("r16", "end", 0.0)], [("r3", "end", 0.0)]]


def test_whole_requests_are_sent_as_they_are(tmp_path: Path) -> None:
    payload = {"model": "x", "messages": MESSAGES[:1], "max_tokens": 7}
    tools = [{"type": "function", "function": {"name": "f"}}]
    trace = trace_of(
        tmp_path,
        {"session_id": "a", "payload": payload},
        {"session_id": "b", "messages": MESSAGES, "tools": tools, "output_length": 3, "extra": {"top_p": 0.5}},
    )
    sent, made = bodies(trace)
    assert sent == payload
    assert (made["messages"], made["tools"], made["max_tokens"], made["top_p"]) == (MESSAGES, tools, 3, 0.5)
    assert [send.stream for send in trace.sends] == [False, True]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"session_id": "a"}, ":2: a turn with one of input_length, text_input, messages, payload"),
        ({"session_id": "a", "input_length": 5, "text_input": "b"}, ":2: a turn with one of"),
        ({"session_id": "a", "input_length": -5}, ":2: input_length and hash_ids: a number of tokens"),
        ({"session_id": "a", "input_length": 5, "delay": "2s"}, ":2: delay: milliseconds of at least 0"),
        ({"session_id": "a", "text_input": "b", "output_length": 0}, ":2: output_length: a whole number"),
        ({"session_id": "a", "payload": {"prompt": "b"}}, ":2: payload: a chat request"),
    ],
)
def test_a_wrong_turn_is_named(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=why):
        trace_of(tmp_path, {"session_id": "a", "input_length": 5}, row)


def test_a_phase_with_trace_says_how_sessions_are_sent(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"session_id": "a", "input_length": 5, "output_length": 3}) + "\n")
    file = tmp_path / "p.yaml"
    file.write_text("name: n\ntraffic: [{name: t, payload: {text: {tokens: 10}}}]\nload: [{trace: t.jsonl}]\n")
    assert "loadchaos replay FILE --export DIR" in output_of("check", file, code=2)
