"""What the verdict says of latencies that mean nothing."""

from collections.abc import Callable

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.histogram import bucket
from loadchaos.report.performance import latency_rows
from loadchaos.report.phrases import generator_text
from tests.analysis.conftest import History
from tests.rows import MS, Row, decisions


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


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"steal": 0.21}, "the hypervisor gave 21% of its CPU time to others (steal)"),
        ({"periods": 50, "throttled": 10}, "the CPU limit of the cgroup was reached in 20% of its periods"),
        ({"swapped_bytes": 2**30}, "it swapped 1,024 MiB of memory"),
        ({"others": 0.31}, "other processes took 31% of its CPU time, of which 90% was in use"),
        ({"others": 0.31, "busy": 0.8}, ""),  # there was time for all
        ({"others": 0.09, "steal": 0.01, "periods": 50, "throttled": 1, "swapped_bytes": 2**20}, ""),
    ],
)
def test_broken_limit_proves_nothing_where_others_took_our_cpu_time(history: History, more: Row, why: str) -> None:
    """A limit that is met is met: without the others the latency would be smaller."""
    usual = {"seconds": 5.0, "cpus": 2, "busy": 0.9, "steal": 0.0, "periods": 0, "throttled": 0, "swapped_bytes": 0}
    history.begin().add("host", **{**usual, **more})
    verdict = verdict_of(history, 20, 63, expect=["text.ttft_p50 <= 1ms", "text.ttft_p50 <= 5s"])
    assert decisions(verdict) == ["unknown" if why else "fail", "pass"]
    told = f"on the machine of loadchaos {why}"
    assert (told in verdict["expectations"][0]["actual"]) == bool(why)
    assert verdict["generator"]["host"] == ([why] if why else [])
    assert (told in generator_text(Verdict.from_json(verdict))) == bool(why)
