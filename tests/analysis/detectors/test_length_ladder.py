from typing import Any

import pytest

from loadchaos.analysis.detectors.length_ladder import moved_by
from loadchaos.core.model import Facts
from tests.analysis.conftest import History


def near_limit_check(history: History) -> tuple[str, str]:
    """The check's verdict and words."""
    check = next(c for c in history.end().verdict()["checks"] if c["name"] == "near_limit")
    return check["verdict"], check["actual"]


def climb(
    history: History, phase: int = 1, refused_from: int = 0, sum_outcome: str = "rejected", at_once: int = 1
) -> None:
    """Prompts below and above a limit of 1000, `at_once` at a time."""
    rungs = [(m, n) for m in (-300, -200, -100, -1) for n in (1, -m, 64 - m)] + [(0, 1), (64, 1)]
    for i in range(0, len(rungs), at_once):
        some = [(m, n, history.send(1, "edge", edge=m, max_tokens=n)) for m, n in rungs[i : i + at_once]]
        history.run(0.5)
        for m, n, ids in some:
            outcome = "rejected" if m >= refused_from else sum_outcome if m + n > 0 else "ok"
            more: dict[str, Any] = {"edge": m, "planned_tokens": 1000 + m, "expect": ["ok", "rejected"], "phase": phase}
            history.answer(ids, outcome, **more)


def test_length_ladder_shows_where_failures_begin(history: History) -> None:
    history.begin().work(5)
    for edge in range(-1100, 0, 100):
        bad = edge >= -700
        error: dict[str, Any] = {"status": 500, "error": "CUDA error: device-side assert"} if bad else {}
        history.answer(history.send(1, "edge"), "http_error" if bad else "ok", edge=edge, **error)
    history.answer(history.send(1, "edge"), "rejected", edge=1, expect=["rejected"])
    verdict, words = near_limit_check(history)
    assert verdict == "fail"
    assert "longest answered: -800" in words
    assert "stay more than 700 tokens" in words


def test_length_ladder_gives_no_distance_below_the_shortest_length(history: History) -> None:
    history.begin().work(5)
    for edge in (-40, -20, -1):
        error: dict[str, Any] = {"status": 500, "error": "CUDA error: device-side assert"}
        history.answer(history.send(1, "edge"), "http_error", edge=edge, **error)
    verdict, words = near_limit_check(history)
    assert verdict == "fail"
    assert "failures from -40 on, the shortest length tried" in words
    assert "stay" not in words


def test_length_ladder_separates_refused_sums_from_refused_prompts(history: History) -> None:
    history.begin().work(5)
    climb(history)
    climb(history, phase=2, at_once=7)
    expected = "longest answered: -1; shortest refused: +0; output beyond the limit: refused"
    assert near_limit_check(history) == ("pass", f"limit 1,000 tokens; {expected} (in tokens relative to the limit)")


@pytest.mark.parametrize("sum_outcome", ["ok", "rejected"])
def test_length_ladder_shows_answers_beyond_the_limit(history: History, sum_outcome: str) -> None:
    history.begin().work(5)
    climb(history, sum_outcome=sum_outcome)
    assert f"beyond the limit: {'answered' if sum_outcome == 'ok' else 'refused'} (" in near_limit_check(history)[1]


def test_length_ladder_separates_concurrent_requests_where_they_differ(history: History) -> None:
    history.begin().work(5)
    climb(history)
    climb(history, phase=2, refused_from=-100, at_once=7)
    words = near_limit_check(history)[1]
    assert "one at a time: longest answered: -1, shortest refused: +0, output" in words
    assert "concurrent: longest answered: -200, shortest refused: -100, output" in words


def facts(dialect: str, **more: int) -> Facts:
    return Facts("http://s", "http://s", dialect, **more)  # type: ignore[arg-type]  # numbers only


@pytest.mark.parametrize(
    ("known", "limit", "says"),
    [
        (facts("lmdeploy", kv_blocks=21, kv_block_size=64, input_limit=1216), 1217,
         "21 blocks of 64 hold a prompt of 1,216, set by --num-gpu-blocks or --cache-max-entry-count"),
        (facts("lmdeploy", kv_blocks=210, kv_block_size=64, input_limit=13312, max_model_len=8192), 8192,
         "set by --session-len"),
        (facts("lmdeploy", max_model_len=16384), 1344, ""),
        (facts("vllm", max_model_len=4096), 4096, "set by --max-model-len"),
        (facts("sglang", max_model_len=4096, capacity_tokens=4096, input_limit=4089), 4090, "set by --context-length"),
        (facts("sglang", max_model_len=4096, capacity_tokens=1024, input_limit=1017), 1018,
         "set by --max-total-tokens or --mem-fraction-static"),
        (facts("sglang", max_model_len=4096, capacity_tokens=1024, input_limit=1017), 1000, ""),
        (facts("openai", max_model_len=4096), 4096, ""),
        (facts("vllm"), None, ""),
        (None, 4096, ""),
    ],
)  # fmt: skip
def test_capacity_names_the_flag_of_the_longest_prompt(known: Facts | None, limit: int | None, says: str) -> None:
    assert moved_by(known, limit) == says
