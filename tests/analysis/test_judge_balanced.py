from typing import Any

import pytest

from loadchaos.analysis.judge import Judge
from tests.analysis.conftest import History
from tests.rows import folded

CAUSE_ALONE = "RuntimeError: CUDA error: an illegal memory access was encountered"


CAUGHT = """2026-11-26 11:11:38,667 - lmdeploy - ERROR - async_engine.py:456 - [safe_run] session 4 exception caught: CUDA error: an illegal memory access was encountered
Traceback (most recent call last):
  File "/x/lmdeploy/serve/core/async_engine.py", line 699, in generate
    async for outputs in gen:
RuntimeError: CUDA error: an illegal memory access was encountered"""  # noqa: E501 - as the log has it


def external(history: History) -> Any:
    """The same history of a server that somebody else started."""
    history.begin()
    history.rows = [r for r in history.rows if r["row"] != "launch"]
    return history.work(10)


def test_death_that_only_a_log_tells_is_a_note(history: History) -> None:
    verdict = external(history).log(history.MISS).work(20).end().verdict()
    assert (verdict["verdict"], verdict["failures"], verdict["incidents"]) == ("pass", [], [])
    assert "nothing else confirms a death: no request was lost" in verdict["notes"][0]


@pytest.mark.parametrize("answered_s", [0, 0.5])
def test_words_of_failed_requests_kill_nobody_however_short_the_load_is(history: History, answered_s: float) -> None:
    """An exception of one request, whose handler catches it, and the load ends within the second."""
    ids = external(history).send(1)
    history.log(CAUGHT).answer(ids, "stream_error", error="An internal server error occurred.").work(answered_s)
    verdict = history.end().verdict()
    [failure] = verdict["failures"]
    assert (failure["id"], failure["severity"], failure["lost_requests"]) == (
        "lmdeploy_request_exception",
        "request",
        1,
    )
    assert "CUDA illegal memory access" in failure["title"]
    assert history.decision(verdict, "engine_deaths") == "pass"
    assert [i["kind"] for i in verdict["incidents"]] == ["failure"]


def test_words_of_a_request_are_told_once_with_what_they_were(history: History) -> None:
    """While the load goes on, nobody says that the engine died."""
    ids = external(history).send(1)
    history.log(CAUGHT).answer(ids, "stream_error", error="An internal server error occurred.").work(3).end()
    judge, told = Judge(), []
    for row in history.rows:
        judge.fold(row)
        told += [r for r in judge.findings() if r["row"] == "failure" or r["what"] == "close"]
    told += [r for r in (judge.verdict(), judge.findings())[1] if r["row"] == "failure" or r["what"] == "close"]
    assert {r["id"] for r in told} == {"lmdeploy_request_exception"}
    assert [r["severity"] for r in told if r["row"] == "failure"] == ["request"]
    assert [r["kind"] for r in told if r["row"] == "incident"] == ["failure"]


def test_words_are_a_death_where_all_later_requests_fail(history: History) -> None:
    external(history).log(CAUGHT)
    for _ in range(4):
        ids = history.idle(0.2).send(1)
        history.answer(ids, "stream_error", took_s=0.1, error="An internal server error occurred.")
    [failure] = history.end().verdict()["failures"]
    assert (failure["id"], failure["severity"]) == ("cuda_illegal_memory_access", "engine_death")


def test_words_in_one_answer_kill_nobody(history: History) -> None:
    external(history).work(5).answer(history.send(1), "http_error", error=history.TEXT_OF_DEATH, status=500)
    verdict = history.work(20).end().verdict()
    assert [f["severity"] for f in verdict["failures"]] == ["request"]
    assert {c["name"]: c["verdict"] for c in verdict["expectations"]}["engine_deaths"] == "pass"


@pytest.mark.parametrize(("outcome", "status"), [("http_error", 500), ("stream_error", 200), ("http_error", 502)])
def test_words_in_some_answers_are_failures_of_their_requests(history: History, outcome: str, status: int) -> None:
    external(history)
    for _ in range(8):
        history.work(1).answer(history.send(2), outcome, error=history.TEXT_OF_DEATH, status=status)
    verdict = history.work(20).end().verdict()
    [failure] = verdict["failures"]
    assert (failure["id"], failure["severity"], failure["count"]) == ("engine_dead_error", "request", 16)
    assert failure["requests"] == {"text": {outcome: 16}}
    assert {c["name"]: c["actual"] for c in verdict["expectations"]}["engine_deaths"] == "0"
    assert [i["kind"] for i in verdict["incidents"]] == ["failure"]
    assert verdict["notes"] == []


def test_refusals_that_quote_a_prompt_are_refusals(history: History) -> None:
    external(history)
    for _ in range(8):
        history.work(1).answer(history.send(2), "rejected", error=history.TEXT_OF_DEATH, status=400)
    verdict = history.work(20).end().verdict()
    assert [(f["id"], f["severity"], f["count"]) for f in verdict["failures"]] == [
        ("unexpected_rejection", "request", 16)
    ]
    assert "dying" not in {s["state"] for s in verdict["states"]}


def test_judge_counts_a_dead_engine_behind_an_address_that_answers(history: History) -> None:
    """A balancer that looks like one server: several requests are lost, and another replica answers."""
    external(history).work(5).log(history.MISS).answer(
        history.send(3), "http_error", error=history.TEXT_OF_DEATH, status=500
    )
    verdict = history.work(20).end().verdict()
    counts = {c["name"]: c["verdict"] for c in verdict["expectations"]}
    assert (verdict["verdict"], counts["engine_deaths"]) == ("fail", "fail")
    assert verdict["worth"].startswith("Crash rate 0.")
    assert verdict["incidents"][0]["kind"] == "death"


@pytest.mark.parametrize("several", [False, True])
def test_judge_counts_a_death_where_several_servers_share_the_address(history: History, several: bool) -> None:
    external(history).log(CAUSE_ALONE).work(10)
    for i in range(8):
        history.start_time += 1000 * (1 if i % 2 else -1) * several
        history.work(2)
    verdict = history.end().verdict()
    counts = {c["name"]: c["verdict"] for c in verdict["expectations"]}
    assert (verdict["verdict"], counts["engine_deaths"]) == (("fail", "fail") if several else ("pass", "pass"))


def test_judge_death_of_one_of_several_says_so_in_its_signs(history: History) -> None:
    external(history)
    for i in range(8):
        history.start_time += 1000 * (1 if i % 2 else -1)
        history.work(2)
    history.answer(history.send(1), "stream_error", error=history.TEXT_OF_DEATH)
    judge = folded(Judge(), history.work(10).end().rows)
    assert judge.verdict().to_json()["worth"].startswith("Crash rate 0.")
    [death] = judge.incidents
    assert "one of several servers behind the address died" in death.signs
