from typing import Any

import pytest

from loadchaos.analysis.detectors.silent_faults import SilentFaultDetector, prompt_truncation, truncated_answers
from tests.analysis.conftest import History
from tests.rows import S, metrics_row


def metrics(
    silent: SilentFaultDetector, seconds: range, *, replica: str = "server", moving: bool = False, **values: float
) -> list[str]:
    ids = []
    for second in seconds:
        silent.fold(metrics_row(second, values, replica=replica, iterations_total=float(second if moving else 0)))
        ids += [s.id for s in silent.poll(second * S)]
    return ids


def heartbeat(silent: SilentFaultDetector, second: int, in_flight: int) -> None:
    silent.fold({"row": "heartbeat", "at_ns": second * S, "file": "requests-0", "in_flight": in_flight})


def test_silent_faults_report_a_stuck_queue_once() -> None:
    waiting: dict[str, Any] = {"requests_running": 0.0, "requests_waiting": 4.0, "kv_usage_ratio": 0.1}
    assert metrics(SilentFaultDetector(), range(1, 100), **waiting) == ["kv_capacity_deadlock"]
    full: dict[str, Any] = {**waiting, "kv_usage_ratio": 0.99}
    assert metrics(SilentFaultDetector(), range(1, 100), **full) == ["preempt_thrash_deadlock"]


@pytest.mark.parametrize(
    "values",
    [
        {"requests_running": 0.0, "requests_waiting": 0.0},
        {"requests_running": 1.0, "requests_waiting": 9.0},
        {"requests_running": 0.0, "requests_waiting": 9.0, "moving": True},
        {"requests_waiting": 9.0},
    ],
)
def test_silent_faults_ignore_idle_and_busy_servers(values: dict[str, Any]) -> None:
    assert metrics(SilentFaultDetector(), range(1, 100), **values) == []


def test_silent_faults_wait_after_a_pause_attack() -> None:
    silent = SilentFaultDetector()
    values: dict[str, Any] = {"requests_running": 0.0, "requests_waiting": 4.0}
    assert metrics(silent, range(1, 25), **values) == []
    silent.fold({"row": "attack", "at_ns": 25 * S, "what": "end", "effects": ["paused"]})
    assert metrics(silent, range(26, 50), **values) == []


def test_silent_faults_report_requests_held_without_a_client() -> None:
    silent = SilentFaultDetector()
    heartbeat(silent, 0, 0)
    assert metrics(silent, range(1, 40), requests_running=3.0, requests_waiting=0.0) == ["lost_requests_held"]


def test_silent_faults_ignore_requests_of_known_clients() -> None:
    silent = SilentFaultDetector()
    heartbeat(silent, 0, 3)
    assert metrics(silent, range(1, 40), requests_running=3.0) == []
    others = SilentFaultDetector()
    heartbeat(others, 0, 0)
    assert metrics(others, range(1, 40), requests_running=3.0, moving=True) == []
    # without heartbeats the number in flight is not known
    assert metrics(SilentFaultDetector(), range(1, 40), requests_running=3.0) == []


WHOLE = [(n, n) for n in (100, 500, 1000, 1990)]
CUT = [(n, 2048) for n in (3000, 4000, 2500)]


@pytest.mark.parametrize(
    ("prompts", "length"),
    [
        ([*WHOLE, *CUT], 2048),
        ([], None),
        ([(n, n + 7) for n in range(100, 4000, 100)], None),  # a chat template nobody counted
        ([(n, int(n * 0.9)) for n in range(100, 4000, 100)], None),  # lengths that were guessed
        ([(500, 450)] * 9, None),  # one length, guessed
        ([*WHOLE, *CUT[:2]], None),  # twice is chance
        ([*WHOLE, *CUT, (3500, 3500)], None),  # a longer one came whole
    ],
)
def test_prompt_truncation_is_one_length_of_all_longer_prompts(
    prompts: list[tuple[int, int]], length: int | None
) -> None:
    assert prompt_truncation(prompts) == length


@pytest.mark.parametrize(
    ("answers", "context", "found"),
    [
        ([(100, 256, 1000), (200, 256, 800), (50, 256, 900)], 8192, (3, 256)),
        ([(100, 256, 256)] * 5, 8192, None),
        ([(7900, 291, 1000)] * 5, 8192, None),  # the context is full
        ([(100, 200, 1000)] * 2, 8192, None),
        ([(100, 200, 1000)] * 5, None, None),
    ],
)
def test_truncated_answers_leave_out_real_limits(
    answers: list[tuple[int, int, int]], context: int | None, found: tuple[int, int] | None
) -> None:
    assert truncated_answers(answers, context) == found


def test_stuck_queue_names_the_hang_of_the_states(history: History) -> None:
    ids = history.begin().work(5).send(4)
    history.in_flight, history.tokens, history.working, history.metrics = 4, 0, False, False
    for _ in range(100):
        history.run(1)
        values = {"requests_running": 0.0, "requests_waiting": 4.0, "kv_usage_ratio": 0.2, "iterations_total": 9.0}
        history.add("metrics", replica="server", engine="0", took_ns=1, values=values)
    history.answer(ids, "timeout").idle(2).end()
    assert "hung" in [r["to"] for r in history.rows if r["row"] == "state"]
    hangs = [f for f in history.verdict()["failures"] if f["severity"] == "hang"]
    assert [f["id"] for f in hangs] == ["kv_capacity_deadlock"]
    assert hangs[0]["incident"].endswith("kv_capacity_deadlock")


def test_truncated_prompts_fail_a_run(history: History) -> None:
    history.begin(max_model_len=8192).work(5)
    for planned, counted in [(100, 100), (200, 200), (300, 300), (3000, 2048), (4000, 2048), (5000, 2048)]:
        history.answer(history.send(), planned_tokens=planned, prompt_tokens=counted)
    history.work(20).end()
    assert [f["id"] for f in history.verdict()["failures"]] == ["silent_truncation"]


def test_truncated_answers_leave_out_a_full_kv_cache(history: History) -> None:
    history.begin(dialect="lmdeploy", max_model_len=16384, capacity_tokens=11008, input_limit=10880).work(5)
    for prompt in (10841, 10861, 10880, 10500):
        ids = history.send(max_tokens=5600)
        full: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": 10880 - prompt + 1,
            "finish_reason": "length",
        }
        history.answer(ids, planned_tokens=prompt, **full)
    assert history.work(20).end().verdict()["failures"] == []


def test_truncated_answers_fail_a_run(history: History) -> None:
    history.begin(max_model_len=8192).work(5)
    for prompt in (100, 120, 140):
        early: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": 256, "finish_reason": "length"}
        history.answer(history.send(max_tokens=1000), planned_tokens=prompt, **early)
    (found,) = history.work(20).end().verdict()["failures"]
    assert found["title"].startswith("3 answers ended with finish_reason length before max_tokens")


def test_answer_of_another_request_is_a_failure_of_its_own(history: History) -> None:
    error = "the word of another request is in the answer: amber fjord lantern quill orchid saddle"
    history.begin().work(5).answer(history.send(2), "wrong_output", error=error).work(25).end()
    [failure] = history.verdict()["failures"]
    assert (failure["id"], failure["count"]) == ("answer_of_another_request", 2)


def test_death_with_exit_code_0_is_explained_in_the_remedy(history: History) -> None:
    ids = history.begin().work(5).send(3)
    [failure] = history.die(ids, code=0).idle(3).end().verdict()["failures"]
    assert "exit code 0" in failure["remedy"]
