"""What the verdict says of latencies that mean nothing."""

from collections.abc import Callable

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.histogram import bucket
from loadchaos.report.performance import latency_rows
from tests.analysis.conftest import History
from tests.rows import MS, Row


def verdict_of(history: History, gap_ms: float, gaps: int, chunks: int = 64, **terms: object) -> Row:
    history.begin()
    for _ in range(30):
        ids = history.send(2)
        history.serve(1.5, 2)
        more: Row = {"itl_hist": {str(bucket(gap_ms * MS)): gaps}, "chunks": chunks, "completion_tokens": 64}
        history.answer(ids, took_s=1.5, **more)
    return history.end().verdict(**terms)


def test_bursts_void_itl_and_tpot_and_fail_nothing(history: History) -> None:
    verdict = verdict_of(history, 320, 3, expect=["text.itl_p50 <= 50ms", "tpot_p50 <= 50ms", "text.ttft_p50 <= 5s"])
    assert [(e["name"], e["verdict"]) for e in verdict["expectations"]] == [
        ("text.itl_p50", "unknown"),
        ("tpot_p50", "unknown"),
        ("text.ttft_p50", "pass"),
    ]
    assert "but chunks arrive in bursts of 16" in verdict["expectations"][0]["actual"]
    assert set(verdict["latency"]["text"]["void"]) == set(verdict["latency_all"]["void"]) == {"itl_s", "tpot_s"}
    (note,) = [n for n in verdict["notes"] if "bursts" in n]
    assert note.endswith("so ITL and TPOT say nothing about the server")
    assert [row[1] for row in latency_rows(Verdict.from_json(verdict))] == ["TTFT", "ITL ?", "TPOT ?", "E2E"]


@pytest.mark.parametrize(("gap_ms", "gaps", "known"), [(320, 3, False), (20, 63, True)])
def test_goodput_by_itl_is_unknown_where_itl_means_nothing(
    make_history: Callable[[], History], gap_ms: float, gaps: int, *, known: bool
) -> None:
    verdict = verdict_of(make_history(), gap_ms, gaps, slo={"itl_p99": 1.0}, expect=["goodput >= 90%"])
    assert verdict["expectations"][0]["verdict"] == ("pass" if known else "unknown")
