"""Traces of agents: WEKA's, and AIPerf's dag_jsonl. AIPerf 0.13.0 sends the same seven requests of DAG in this order."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.replay.made_texts import made_text
from loadchaos.campaigns.replay.sources import read_source
from loadchaos.core.errors import OptionError
from loadchaos.profile.request_trace import RequestTrace


def turn(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, **more}


DAG: list[dict[str, Any]] = [
    {"session_id": "root", "turns": [
        turn("Plan a trip.", 8, spawns=["search", {"children": ["book"], "join_at": 2}]),
        turn("What was found?", 6, delay=100),
        turn("Write it down.", 5, extra={"temperature": 0}, forks=["check"]),
    ]},
    {"session_id": "search", "turns": [turn("Search boats.", 4), turn("And prices.", 4)]},
    {"session_id": "book", "turns": [turn("Book a room.", 4)]},
    {"session_id": "check", "turns": [turn("Check the plan.", 4)]},
]  # fmt: skip


def call(t: float, tokens: int, out: int, blocks: list[int], api_time: float, kind: str = "n") -> dict[str, Any]:
    return {"t": t, "type": kind, "model": "m", "in": tokens, "out": out, "hash_ids": blocks, "api_time": api_time}


def weka(*requests: dict[str, Any], block_size: int = 16) -> dict[str, Any]:
    return {"id": "s", "models": ["m"], "block_size": block_size, "hash_id_scope": "local", "requests": list(requests)}


def subagent(t: float, *requests: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": "a", "status": status, "requests": list(requests), "models": ["m"]}


def trace_of(folder: Path, *rows: dict[str, Any], indent: int | None = None) -> RequestTrace:
    file = folder / "agents.jsonl"
    file.write_text("".join(json.dumps(row, indent=indent) + "\n" for row in rows))
    return read_source(file, folder / "scratch")


def bodies(trace: RequestTrace) -> list[dict[str, Any]]:
    return [json.loads(trace.body_file(send).read_bytes()) for send in trace.sends]


def causes(trace: RequestTrace) -> list[list[tuple[str, str, float]]]:
    return [[(c.request, c.event, c.delay_s) for c in send.after] for send in trace.sends]


def texts(trace: RequestTrace) -> list[str]:
    return [body["messages"][0]["content"] for body in bodies(trace)]


def test_conversations_begin_others_and_wait_for_them(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *DAG)
    last = [body["messages"][-1]["content"] for body in bodies(trace)]
    assert last == [
        "Plan a trip.", "Search boats.", "And prices.", "Book a room.", "What was found?", "Write it down.",
        "Check the plan.",
    ]  # fmt: skip
    assert causes(trace) == [
        [],
        [("r0", "end", 0.0)],
        [("r1", "end", 0.0)],
        [("r0", "end", 0.0)],
        [("r0", "end", 0.1), ("r2", "end", 0.1)],
        [("r4", "end", 0.0), ("r3", "end", 0.0)],
        [("r5", "end", 0.0)],
    ]


def test_a_fork_goes_on_with_what_was_said_and_a_spawn_begins_anew(tmp_path: Path) -> None:
    found = bodies(trace_of(tmp_path, *DAG))
    assert [len(body["messages"]) for body in found] == [1, 1, 3, 1, 3, 5, 7]
    assert found[6]["messages"][:5] == found[5]["messages"]
    assert len(found[6]["messages"][1]["content"].split()) == 8, "an answer of max_tokens"
    assert (found[5]["temperature"], found[5]["max_tokens"]) == (0, 5)


def test_a_conversation_ends_with_a_fork_that_is_not_in_the_background(tmp_path: Path) -> None:
    child = {"session_id": "child", "turns": [turn("c", 2)]}
    for background, requests in ((False, 2), (True, 3)):
        first = turn("a", 2, forks=[{"child": "child", "background": background}])
        trace = trace_of(tmp_path, {"session_id": "root", "turns": [first, turn("b", 2)]}, child)
        assert len(trace.sends) == requests


def test_an_orchestrator_begins_its_rounds_one_after_the_other(tmp_path: Path) -> None:
    work = [{"session_id": name, "turns": [turn(name, 2)]} for name in ("x", "y")]
    rounds = {"session_id": "o", "orchestrator": True, "spawns": ["x", "y"], "rounds": 2, "think_time_ms": 500}
    assert causes(trace_of(tmp_path, rounds, *work)) == [
        [], [], [("r0", "end", 0.5), ("r1", "end", 0.5)], [("r0", "end", 0.5), ("r1", "end", 0.5)],
    ]  # fmt: skip


def test_turns_that_are_whole_requests_have_no_history(tmp_path: Path) -> None:
    row = {"session_id": "a", "context_mode": "message_array_with_responses", "turns": [turn("a", 2), turn("b", 2)]}
    assert [len(body["messages"]) for body in bodies(trace_of(tmp_path, row))] == [1, 1]


@pytest.mark.parametrize("indent", [None, 2])
def test_an_agent_waits_for_its_subagent_as_it_did(indent: int | None, tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        weka(
            call(0.0, 40, 8, [1, 2], 1.0, "s"),
            subagent(1.5, call(0.0, 20, 4, [9], 0.5), call(1.0, 30, 4, [9], 1.0)),
            call(4.0, 70, 0, [1, 2, 3], 1.0),
        ),
        indent=indent,
    )
    assert causes(trace) == [
        [],
        [("r0", "end", 0.5)],
        [("r1", "end", 0.5)],
        [("r0", "end", 3.0), ("r2", "end", 0.5)],
    ]
    assert [send.stream for send in trace.sends] == [True, False, False, False]
    assert [body["min_tokens"] for body in bodies(trace)] == [8, 4, 4, 1]
    first, _, _, last = (text.split() for text in texts(trace))
    assert (len(first), len(last)) == (40, 70)
    assert first[:32] == last[:32], "blocks of 16 tokens"
    assert first[32:] != last[32:40]


def test_an_agent_does_not_wait_for_a_subagent_that_goes_on_beside_it(tmp_path: Path) -> None:
    spawned = subagent(1.0, call(1.0, 20, 4, [9], 0.5), status="async_launched")
    found = causes(trace_of(tmp_path, weka(call(0.0, 40, 8, [1], 1.0), spawned, call(2.0, 50, 8, [1], 1.0))))
    assert found == [[], [("r0", "end", 0.0)], [("r0", "end", 1.0)]]


def test_a_request_beside_one_that_was_not_answered_begins_after_its_begin(tmp_path: Path) -> None:
    found = causes(trace_of(tmp_path, weka(call(0.0, 40, 8, [1], 5.0), call(2.0, 40, 8, [1], 1.0))))
    assert found == [[], [("r0", "begin", 2.0)]]


def test_blocks_are_those_of_their_own_session(tmp_path: Path) -> None:
    rows = [weka(call(0.0, 16, 8, [1], 1.0))] * 9
    trace = trace_of(tmp_path, *rows)
    assert len(set(texts(trace))) == 9
    assert causes(trace)[8] == [("r0", "end", 0.0)], "eight sessions side by side"


def test_other_blocks_have_other_words() -> None:
    assert len({made_text(18, [block], 0) for block in range(2000)}) == 2000
    assert len({made_text(18, (), number) for number in range(2000)}) == 2000


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"session_id": "a", "turns": [turn("x", 2, spawns=["b"])]}], r"jsonl:1: b: no conversation has this"),
        ([{"session_id": "a", "turns": [turn("x", 2, forks=["a"])]}, *DAG], "a begins itself, by a"),
        ([{"session_id": "a", "turns": [turn("x", 2, delay="soon")]}], r"jsonl:1: delay: milliseconds .* \(got 'soon'\)"),
        ([{"session_id": "a", "turns": [turn("x", 0)]}], "max_tokens: a whole number of at least 1"),
        ([weka({"t": 0.0, "type": "n", "out": 3})], "in: a whole number of at least 1 was expected"),
        ([weka(call(0.0, 3, 3, [], 0.0), {"t": -1})], "t: seconds of at least 0"),
        ([{**weka(), "requests": 7}], "requests: a list of objects"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(rows: list[dict[str, Any]], why: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=why):
        trace_of(tmp_path, *rows)
