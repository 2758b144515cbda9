import tracemalloc
from typing import Any

import pytest

from loadchaos.analysis.detectors.answer_usage import AnswerUsage
from loadchaos.analysis.failure import Failure
from tests.rows import S, folded, metrics_row


def begin(n: int, body: str) -> dict[str, Any]:
    return {"row": "begin", "at_ns": n * S, "id": f"r{n}", "hash": body, "traffic": "t"}


def end(n: int, prompt: int = 100, completion: int = 50) -> dict[str, Any]:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"row": "end", "at_ns": n * S, "id": f"r{n}", "traffic": "t", "outcome": "ok", **counted}


def scrape(at_s: float, prompt: float, completion: float, replica: str = "a", finished: float = 0) -> dict[str, Any]:
    counters = {
        "prompt_tokens_total": prompt,
        "generation_tokens_total": completion,
        "requests_finished_total": finished,
    }
    return metrics_row(at_s, counters, replica=replica)


def run(counted: float, *, restarts: bool = False, replica: str = "a") -> list[str]:
    detector = AnswerUsage()
    detector.fold(scrape(0, 1000, 1000))
    for n in range(1, 101):
        detector.fold(begin(n, f"b{n}"))
        detector.fold(end(n))
        if restarts and n == 50:
            detector.fold(scrape(n, 0, 0))
    detector.fold(scrape(120, 1000 + 10_000 * counted, 1000 + 5_000 * counted, replica))
    return [f.id for f in detector.finish() if isinstance(f, Failure)]


def test_same_body_with_other_prompt_tokens_names_both_requests() -> None:
    detector = folded(
        AnswerUsage(),
        (begin(1, "x"), end(1), begin(2, "x"), end(2), begin(3, "y"), end(3, 7), begin(4, "x"), end(4, 101)),
    )
    (failure,) = detector.poll(0)
    assert failure.id == "prompt_tokens_differ"
    assert failure.wrong[0].subject == "r4"
    assert failure.wrong[0].facts["other_request"] == "r1"


def test_answers_with_more_tokens_than_the_server_counts_are_a_failure() -> None:
    assert run(0.93) == ["usage_exceeds_counters"] * 2
    assert run(1.0) == []
    assert run(1.3) == [], "aborted requests and others"


@pytest.mark.parametrize(
    ("prompt", "completion", "finished", "wrong"),
    [
        (10_000, 2_500, 0, 1),
        (5_000, 2_500, 100, 2),
        (5_000, 2_500, 50, 0),
        (5_000, 2_500, 200, 0),
        (8_000, 2_500, 0, 0),
    ],
)
def test_usage_that_is_doubled_is_found_where_another_counter_is_that_of_the_whole_server(
    prompt: int, completion: int, finished: int, wrong: int
) -> None:
    detector = folded(AnswerUsage(), [scrape(0, 0, 0)])
    for n in range(1, 101):
        detector.fold(begin(n, f"b{n}"))
        detector.fold(end(n))
    detector.fold(scrape(120, prompt, completion, finished=finished))
    assert len(detector.finish()) == wrong


def test_counters_of_one_replica_of_several_prove_nothing() -> None:
    assert run(0.5) == []
    assert run(0.95, replica="unseen before the load") == []


def test_restart_leaves_the_counters_unjudged() -> None:
    assert run(0.95, restarts=True) == []


def test_answer_usage_keeps_no_answers_without_counters() -> None:
    detector = AnswerUsage()
    feed_many = 5_000
    tracemalloc.start()
    for n in range(feed_many):
        detector.fold(begin(n, "x"))
        detector.fold(end(n))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20 * feed_many
    assert detector.finish() == []
