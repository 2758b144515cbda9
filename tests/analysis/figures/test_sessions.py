from typing import Any

import pytest

from loadchaos.analysis.judge import Judge
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.model import Terms
from loadchaos.report.performance import session_rows, sessions_text
from tests.rows import S, decisions, judged
from tests.schemas import validate

BEGIN = 100 * S
EXPECT = ("turns_lost == 0", "session_e2e_p50 <= 4s", "talk.session_e2e_max <= 9s")


def session(n: int, seconds: float, end: str = "finished", **counts: Any) -> list[dict[str, Any]]:
    """Begins every second, has four turns."""
    base = {
        "row": "conversation", "id": f"lc-a-{n}", "step": n, "phase": counts.pop("phase", 0), "due_ns": BEGIN + n * S,
        "traffic": counts.pop("traffic", "talk"), "planned_turns": 4,
    }  # fmt: skip
    done = {"why": "", "turns": 4, "turns_lost": 0, "requests": 5, "tool_calls": 1, "think_ns": S, **counts}
    rows = [{**base, "what": "begin", "at_ns": BEGIN + n * S}]
    return (
        rows
        if end == "unfinished"
        else [*rows, {**base, **done, "what": "end", "end": end, "at_ns": BEGIN + round((n + seconds) * S)}]
    )


def verdict(*sessions: list[dict[str, Any]], warm_up: dict[str, Any] | None = None, expect: Any = EXPECT) -> Any:
    found = judged(
        Terms("p", expect=expect, warm_up=warm_up or {}),
        sorted((row for rows in sessions for row in rows), key=lambda r: r["at_ns"]),
    )
    validate(found)
    return found


def text_of(found: Any) -> str:
    return sessions_text(Verdict.from_json(found))


def rows_of(found: Any) -> list[list[str]]:
    return session_rows(Verdict.from_json(found))


def test_sessions_have_their_time_and_turns_in_the_verdict() -> None:
    found = verdict(*(session(n, 1 + n % 3) for n in range(30)), session(30, 2, traffic="other"))
    assert decisions(found) == ["pass", "pass", "pass"]
    whole = found["sessions"]
    assert (whole["sessions"], whole["finished"], whole["turns"], whole["planned_turns"]) == (31, 31, 124, 124)
    assert whole["session_e2e_s"]["p50"] == pytest.approx(2, rel=0.05)
    assert (whole["mean_think_s"], whole["session_e2e_s"]["n"], whole["unfinished"]) == (1.0, 31, 0)
    assert [row[:3] for row in rows_of(found)] == [
        ["other", "1", "1"],
        ["talk", "30", "30"],
        ["all", "31", "31"],
    ]
    assert text_of(found).startswith("31 sessions: 31 finished; 124 of 124 turns answered; p50 ")


@pytest.mark.parametrize(
    ("choice", "calls", "decision", "text"),
    [
        ("required", 0, "unknown", "no tool call got a result; 6 calls cut or without a JSON object"),
        ("named", 1, "pass", "3 tool calls; 6 calls cut or without a JSON object"),
        ("auto", 0, None, "no tool call got a result; 6 calls cut or without a JSON object"),
        (None, 0, None, ""),
    ],
)
def test_sessions_that_must_call_tools_and_never_do_prove_no_tool_loop(
    choice: str | None, calls: int, decision: str | None, text: str
) -> None:
    bad: dict[str, Any] = {"bad_calls": 2} if choice else {}
    sessions = [session(n, 2, tool_calls=calls, **bad) for n in range(3)]
    if choice:
        for rows in sessions:
            rows[0]["tools"] = choice
    found = verdict(*sessions)
    checks = [c for c in found["checks"] if c["name"] == "tools_called"]
    assert [c["verdict"] for c in checks] == ([decision] if decision else [])
    assert text_of(found).endswith(text)
    if decision == "unknown":
        assert checks[0]["actual"].startswith("0 tool calls of talk got a result, in 15 requests; 6 calls were cut")


def test_lost_turns_fail_their_expectation_and_are_explained() -> None:
    lost = session(9, 1, "lost", why="http_error", turns=1, turns_lost=3)
    found = verdict(*(session(n, 1) for n in range(9)), lost)
    assert decisions(found)[0] == "fail"
    assert found["expectations"][0]["actual"] == "3"
    assert found["sessions"]["why"] == {"http_error": 1}
    assert "9 finished, 1 lost; 37 of 40 turns answered, 3 lost" in text_of(found)
    assert found["sessions"]["session_e2e_s"]["n"] == 9, "how long a lost session would have taken is not known"


@pytest.mark.parametrize(("cut", "expected"), [(1, "pass"), (2, "unknown")])
def test_turns_without_room_in_the_context_prove_nothing(cut: int, expected: str) -> None:
    """Of 80 planned turns, 4 may have no room; the other traffic does not hide them."""
    short = [session(n, 100, "cut", turns=1, turns_cut=3) for n in range(cut)]
    rest = [session(20 + n, 1, traffic="other") for n in range(40)]
    found = verdict(*short, *(session(n, 1) for n in range(cut, 20)), *rest, expect=("turns_lost == 0",))
    assert decisions(found) == [expected]
    (check,) = [c for c in found["checks"] if c["name"] == "turns_fit"]
    share = {1: "3 of 80 turns of talk (3.8%)", 2: "6 of 80 turns of talk (7.5%)"}[cut]
    assert (check["verdict"], check["actual"]) == (expected, f"{share} had no room in the context")
    whole = found["sessions"]
    assert (whole["cut"], whole["finished"], whole["session_e2e_s"]["n"], whole["why"]) == (cut, 60 - cut, 60 - cut, {})
    assert f"60 sessions: {60 - cut} finished, {cut} cut; " in text_of(found)
    assert rows_of(found)[1][1:6] == ["20", str(20 - cut), "0", "0", str(cut)]


def test_session_lost_to_a_timeout_is_a_lower_bound() -> None:
    lost = session(40, 30, "lost", why="timeout", turns=1, turns_lost=3)
    found = verdict(*(session(n, 1) for n in range(40)), lost)
    assert decisions(found)[2] == "fail"
    assert "lower bound: 1 timed out" in found["expectations"][2]["actual"]


@pytest.mark.parametrize(("stopped", "expected"), [(1, "pass"), (5, "unknown")])
def test_times_of_sessions_prove_nothing_where_a_stop_ended_the_long_ones(stopped: int, expected: str) -> None:
    left = [session(30 + n, 0.5, "left", why="stopped", turns=1, turns_left=3) for n in range(stopped)]
    aborted = session(60, 0.5, "left", why="aborted", turns=1, turns_left=3)
    found = verdict(*(session(n, 1) for n in range(30)), *left, aborted)
    assert decisions(found) == ["pass", expected, expected]
    text = "but 5 of 35 sessions went on when the load was stopped: the longest are missing"
    assert [text in e["actual"] for e in found["expectations"]] == [False, stopped > 1, stopped > 1]
    assert found["sessions"]["session_e2e_s"]["n"] == 30
    assert decisions(verdict(*(session(n, 10) for n in range(30)), *left))[1:] == ["fail", "fail"], "also without them"


@pytest.mark.parametrize(
    ("sessions", "why"),
    [([], "no session began"), ([session(0, 1), session(1, 0, "unfinished")], "the end of 1 sessions is not recorded")],
)
def test_no_lost_turn_is_unknown_where_it_is_not_proved(sessions: Any, why: str) -> None:
    found = verdict(*sessions, expect=("turns_lost == 0",))
    assert decisions(found) == ["unknown"]
    assert found["expectations"][0]["actual"] == f"0, but {why}"


def test_time_of_few_sessions_is_unknown() -> None:
    assert decisions(verdict(*(session(n, 1) for n in range(5))))[1] == "unknown"


def test_sessions_of_the_warm_up_have_no_time_but_lose_turns() -> None:
    warm = [session(n, 60, phase=0) for n in range(3)] + [session(3, 1, "lost", why="reset", turns_lost=2, phase=0)]
    found = verdict(*warm, *(session(10 + n, 1, phase=1) for n in range(25)), warm_up={"phases": [0]})
    assert decisions(found) == ["fail", "pass", "pass"]


def test_later_requests_of_sessions_are_not_more_of_the_plan() -> None:
    """Ten sessions were planned: two began, with ten requests each."""
    judge = Judge(Terms("p", expect=("turns_lost == 0",), planned_requests=10))
    for n in range(2):
        begin, end = session(n, 1)
        judge.fold(begin)
        for number in range(10):
            name = f"lc-a-{n}-r{number}" if number else f"lc-a-{n}"
            base = {"id": name, "step": n, "traffic": "talk", "phase": 0, "due_ns": end["due_ns"], "expect": ["ok"]}
            judge.fold({"row": "begin", **base, "at_ns": end["at_ns"] - 1})
            judge.fold({"row": "end", **base, "at_ns": end["at_ns"], "outcome": "ok", "detail": {}})
        judge.fold(end)
    (delivered,) = [c for c in judge.verdict().to_json()["checks"] if c["name"] == "load_delivered"]
    assert (delivered["actual"], delivered["verdict"]) == ("20.0% (2 of 10)", "unknown")
