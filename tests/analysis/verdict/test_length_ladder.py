"""What the check `near_limit` says of a ladder: lengths and outputs apart, alone and together apart, no advice unproved."""

from typing import Any

import pytest


def said(history: Any) -> tuple[str, str]:
    """The check's verdict and words."""
    check = next(c for c in history.end().verdict()["checks"] if c["name"] == "near_limit")
    return check["verdict"], check["actual"]


def climb(history: Any, phase: int = 1, refused_from: int = 0, over: str = "rejected", at_once: int = 1) -> None:
    """Rungs below a limit of 1000 with one token, to the edge and over it, then two above it, `at_once` at a time."""
    rungs = [(m, n) for m in (-300, -200, -100, -1) for n in (1, -m, 64 - m)] + [(0, 1), (64, 1)]
    for i in range(0, len(rungs), at_once):
        some = [(m, n, history.send(1, "edge", edge=m, max_tokens=n)) for m, n in rungs[i : i + at_once]]
        history.run(0.5)
        for m, n, ids in some:
            outcome = "rejected" if m >= refused_from else over if m + n > 0 else "ok"
            more = {"edge": m, "planned_tokens": 1000 + m, "expect": ["ok", "rejected"], "phase": phase}
            history.answer(ids, outcome, **more)


def test_it_tells_where_trouble_began(history: Any) -> None:
    history.begin().work(5)
    for edge in range(-1100, 0, 100):
        bad = edge >= -700
        error = {"status": 500, "error": "CUDA error: device-side assert"} if bad else {}
        history.answer(history.send(1, "edge"), "http_error" if bad else "ok", edge=edge, **error)
    history.answer(history.send(1, "edge"), "rejected", edge=1, expect=["rejected"])
    verdict, words = said(history)
    assert verdict == "fail"
    assert "longest answered: -800" in words
    assert "stay more than 700 tokens" in words


def test_trouble_at_the_lowest_rung_gives_no_distance_to_keep(history: Any) -> None:
    history.begin().work(5)
    for edge in (-40, -20, -1):
        error = {"status": 500, "error": "CUDA error: device-side assert"}
        history.answer(history.send(1, "edge"), "http_error", edge=edge, **error)
    verdict, words = said(history)
    assert verdict == "fail"
    assert "failures from -40 on, the shortest length tried" in words
    assert "stay" not in words


def test_a_refused_sum_of_prompt_and_output_is_no_refused_length(history: Any) -> None:
    history.begin().work(5)
    climb(history)
    climb(history, phase=2, at_once=7)
    expected = "longest answered: -1; shortest refused: +0; output beyond the limit: refused"
    assert said(history) == ("pass", f"limit 1,000 tokens; {expected} (in tokens relative to the limit)")


@pytest.mark.parametrize("over", ["ok", "rejected"])
def test_a_server_that_answers_over_the_edge_is_told_from_one_that_refuses(history: Any, over: str) -> None:
    history.begin().work(5)
    climb(history, over=over)
    assert f"beyond the limit: {'answered' if over == 'ok' else 'refused'} (" in said(history)[1]


def test_alone_and_together_are_told_apart_where_they_differ(history: Any) -> None:
    history.begin().work(5)
    climb(history)
    climb(history, phase=2, refused_from=-100, at_once=7)
    words = said(history)[1]
    assert "one at a time: longest answered: -1, shortest refused: +0, output" in words
    assert "concurrent: longest answered: -200, shortest refused: -100, output" in words
